"""The bounded pool: who gets no connection learns it soon, and it is counted."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from arl_store.tx import open_store


async def test_only_connections_that_could_not_be_had_count_as_failures(database: str) -> None:
    store = open_store(database, name="test", pool_size=1, acquire_timeout_s=0.05)
    try:
        with pytest.raises(DBAPIError):
            async with store.read() as tx:
                await tx.fetch(text("select no_such_column"))
        async with store.write():
            assert store.acquire_failures == 0
            with pytest.raises(PoolTimeout):
                async with store.read():
                    pass
        assert store.acquire_failures == 1
    finally:
        await store.close()
