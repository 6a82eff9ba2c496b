"""What the tests of a module's own system share."""

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from support.system import System


@pytest_asyncio.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with system.client() as api:
        yield api
