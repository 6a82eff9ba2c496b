"""One system for the tests of all frameworks."""

from collections.abc import AsyncIterator

import pytest_asyncio

from support.postgres import Databases
from support.system import System, running_system


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces") as system:
        yield system
    await databases.drop(owner_url)
