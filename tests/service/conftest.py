"""Provide one database per module. A module that needs more rows in it overrides `shared`."""

from collections.abc import AsyncIterator

import pytest_asyncio

from support.postgres import Databases
from support.rows import Rows, rows_in


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(databases: Databases) -> AsyncIterator[str]:
    owner_url = await databases.clone()
    yield owner_url
    await databases.drop(owner_url)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rows(shared: str) -> AsyncIterator[Rows]:
    async with rows_in(shared) as rows:
        yield rows
