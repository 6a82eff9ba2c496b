"""The bounded pool: who gets no connection learns it soon, and it is counted."""

import asyncpg
import pytest
from sqlalchemy import text

from arl_store.tx import PoolBusy, open_store


async def test_only_connections_that_could_not_be_had_count_as_failures(database: str) -> None:
    store = open_store(database, name="test", pool_size=1, acquire_timeout_s=0.05)
    try:
        with pytest.raises(asyncpg.UndefinedColumnError):
            async with store.read() as tx:
                await tx.fetch(text("select no_such_column"))
        async with store.write():
            assert store.acquire_failures == 0
            with pytest.raises(PoolBusy):
                async with store.read():
                    pass
        assert store.acquire_failures == 1
    finally:
        await store.close()
