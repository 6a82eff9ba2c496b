"""Test lost nodes: admission ignores their capacity, and an administrator can remove them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from arl_admission.service import AdmissionService
from arl_admission.settings import AdmissionSettings
from arl_store.tx import PostgresStore
from arl_wire.internal.admission import AdmitItem, InternalChangeNodeRequest, RemoveNodeRequest, RemoveNodeResponse
from support.builders import EPOCH, a_submission
from support.conditions import eventually
from support.cpu import managing
from support.peers import RecordingPeers
from support.rows import Rows, rows_in, store_of

SETTINGS = AdmissionSettings(port=1, database_url="postgresql://", service_token="t" * 16, scheduler_url="http://s")
SILENT = "-1 minute"


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def store(rows: Rows) -> AsyncIterator[PostgresStore]:
    async with store_of(rows.owner_url, "admission") as store:
        yield store


@pytest.fixture
def admission(store: PostgresStore) -> AdmissionService:
    return AdmissionService(store, RecordingPeers(), SETTINGS)


async def refusal(admission: AdmissionService, rows: Rows, **demand: Any) -> str | None:
    item = AdmitItem(project_id=rows.project, action=a_submission(demand=demand))
    (answer,) = (await admission.admit([item])).items
    return answer.problem.code if answer.problem is not None else None


async def removed(admission: AdmissionService, name: str = "n") -> RemoveNodeResponse:
    return await admission.nodes.remove(RemoveNodeRequest(name=name))


class TestSilentNodes:
    async def test_node_silent_for_a_day_does_not_count_as_capacity(
        self, rows: Rows, admission: AdmissionService
    ) -> None:
        await rows.node("here", cores=2)
        await rows.node("gone", cores=64, beat="-25 hours")
        assert await refusal(admission, rows, cpu=64) == "demand_impossible"

    async def test_node_silent_for_less_than_a_day_counts_as_capacity(
        self, rows: Rows, admission: AdmissionService
    ) -> None:
        await rows.node("here", cores=2)
        await rows.node("away", cores=64, beat="-23 hours")
        assert await refusal(admission, rows, cpu=64) is None

    async def test_forget_node_after_s_setting_changes_the_silence_limit(
        self, rows: Rows, store: PostgresStore
    ) -> None:
        await rows.node("here", cores=2)
        await rows.node("away", cores=64, beat="-2 minutes")
        settings = SETTINGS.model_copy(update={"forget_node_after_s": 60.0})
        assert await refusal(AdmissionService(store, RecordingPeers(), settings), rows, cpu=64) == "demand_impossible"


class TestRemoveNode:
    async def test_removed_node_no_longer_counts_as_capacity(self, rows: Rows, admission: AdmissionService) -> None:
        await rows.node("here", cores=2)
        await rows.node("gone", cores=64, beat=SILENT)
        assert await refusal(admission, rows, cpu=64) is None
        assert (await removed(admission, "gone")).removed
        assert await refusal(admission, rows, cpu=64) == "demand_impossible"
        assert await refusal(admission, rows, cpu=2) is None

    async def test_unknown_node_is_not_removed(self, rows: Rows, admission: AdmissionService) -> None:
        await rows.node(beat=SILENT)
        assert (await removed(admission)).removed
        for name in ("n", "another"):
            answer = await removed(admission, name)
            assert (answer.removed, answer.kept_by) == (False, None)
        assert (await admission.nodes.change(InternalChangeNodeRequest(name="n", cordoned=True))).count == 0

    async def test_live_node_is_not_removed(self, rows: Rows, admission: AdmissionService) -> None:
        await rows.node()
        assert (await removed(admission)).kept_by == "it is alive"

    async def test_node_with_unsettled_actions_is_not_removed(self, rows: Rows, admission: AdmissionService) -> None:
        node = await rows.node(beat=SILENT)
        for state in ("granted", "running"):
            await rows.action(state=state, node_id=node)
        await rows.action(state="settled", outcome="ok", node_id=node)
        assert (await removed(admission)).kept_by == "it has 2 unsettled actions"

    async def test_node_with_live_environments_is_not_removed(self, rows: Rows, admission: AdmissionService) -> None:
        node = await rows.node(beat=SILENT)
        await rows.environment("x", node)
        await rows.environment("y", node, lost_at=await rows.value("select now()"))
        assert (await removed(admission)).kept_by == "it has 1 environments that are not lost"

    async def test_removed_node_that_registers_again_is_not_cordoned(
        self, rows: Rows, admission: AdmissionService
    ) -> None:
        await rows.node(beat=SILENT)
        await admission.nodes.change(InternalChangeNodeRequest(name="n", cordoned=True, drain_deadline_s=0))
        assert (await removed(admission)).removed
        async with managing(rows):
            wishes = "select cordoned_at, drain_requested_at, drain_deadline_at from nodes"
            assert tuple(await rows.pool.fetchrow(wishes)) == (None, None, None)
            assert await rows.value("select epoch from node_beats") == EPOCH

    async def test_running_manager_of_a_removed_node_reports_the_removal(self, rows: Rows) -> None:
        async with managing(rows, beat_s=0.05) as cpu:
            await rows.execute("delete from node_beats")
            await eventually(lambda: "removed" in (cpu.manager.fenced or ""))
