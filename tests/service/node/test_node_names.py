"""Test that node names are unique: a second node waits for the first lease to expire or is refused."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from arl_node.repository import NodeNameTaken, register
from support.builders import EPOCH
from support.conditions import eventually
from support.cpu import managing
from support.executor import FakeExecutor
from support.rows import Rows, rows_in, store_of

DESCRIBED = ("capacity", "topology", "enforced", "templates")
HOLDER = "select epoch from node_beats"


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


class TestSecondNode:
    async def test_second_node_is_refused_while_the_first_is_alive(self, rows: Rows) -> None:
        async with managing(rows, beat_s=0.05) as cpu:
            with pytest.raises(NodeNameTaken, match=r"http://127.0.0.1:1 .*TANGRAM_NODE_NAME"):
                async with managing(rows, FakeExecutor(uuid4()), port=2, beat_s=0.05):
                    pass
            assert await rows.value(HOLDER) == EPOCH
            assert cpu.manager.fenced is None

    async def test_second_node_registers_after_the_first_lease_expires(self, rows: Rows) -> None:
        async with managing(rows):
            pass
        async with managing(rows, FakeExecutor(uuid4()), port=2, node_ttl_s=0.3, beat_s=0.05) as cpu:
            assert await rows.value(HOLDER) == cpu.manager.epoch != EPOCH

    async def test_concurrent_registrations_of_one_name_admit_one_node(self, rows: Rows) -> None:
        async def come(port: int) -> None:
            node = {"name": "n", "kind": "cpu", "url": f"http://127.0.0.1:{port}", "epoch": uuid4(), "driver": "fake"}
            async with store.write() as tx:
                await register(tx, {**node, **dict.fromkeys(DESCRIBED, "{}")}, ttl_s=10.0)

        async with store_of(rows.owner_url, "cpu") as store:
            ended = await asyncio.gather(*(come(port) for port in range(1, 5)), return_exceptions=True)
        assert sorted(str(type(each).__name__) for each in ended) == ["NodeNameTaken"] * 3 + ["NoneType"]


class TestSameNode:
    async def test_restarted_node_registers_immediately_under_a_new_epoch(self, rows: Rows) -> None:
        async with managing(rows, beat_s=0.05), managing(rows, FakeExecutor(UUID(int=8)), beat_s=0.05):
            assert await rows.value(HOLDER) == UUID(int=8)

    async def test_node_registers_its_end_by_the_clock_of_the_database(self, rows: Rows) -> None:
        left_s = "select extract(epoch from ends_at - now())::float8 from nodes"
        async with managing(rows, beat_s=0.05, ends_at=time.time() + 1000):
            assert 900 < await rows.value(left_s) <= 1000
        async with managing(rows, beat_s=0.05):
            assert await rows.value(left_s) is None

    async def test_moved_node_registers_immediately_at_its_new_address(self, rows: Rows) -> None:
        async with managing(rows, beat_s=0.05), managing(rows, FakeExecutor(EPOCH), port=2, beat_s=0.05):
            assert await rows.value("select url from nodes") == "http://127.0.0.1:2"

    async def test_node_is_unready_while_another_node_has_its_lease(self, rows: Rows) -> None:
        async with managing(rows, beat_s=0.05) as cpu:
            await rows.execute("update node_beats set epoch = $1", UUID(int=99))
            await eventually(lambda: "another node registered with its name" in (cpu.manager.fenced or ""))
            await rows.execute("update node_beats set epoch = $1", EPOCH)
            await eventually(lambda: cpu.manager.fenced is None)
