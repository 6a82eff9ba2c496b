"""Test the GPU manager on a real Postgres, with a device that the test controls."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from sqlalchemy import text

from arl_core.domain.model import Fence
from arl_gpu.dispatch.dispatcher import MAX_WORKER_DEATHS
from arl_gpu.node.repository import publish_services
from arl_gpu.worker.client import WorkerDied
from arl_store.logins import role_url
from arl_wire.internal.node import GrantPayload
from support.conditions import eventually
from support.gpu import MOVES, NOTHING, SLOT, SLOTS, Gpu, driving, scored
from support.rows import Rows, rows_in, store_of

WISHED = "update actions set cancel_requested_at = now() where id = $1"
SLOTS_OF_MINILM = {"slots:minilm": SLOTS}
WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
EMPTY = {"states": {}, "used_bytes": 0, "moves": MOVES, "fitting": []}
DIED = ("infra_error", "worker_died")


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@dataclass(frozen=True)
class Twin:
    """A service that is re-registered, with a manager that polls only when the test asks for it."""

    gpu: Gpu
    models: Path

    async def register(self, source: str) -> None:
        sql = "insert into services (name, kind, source) values ('twin', 'similarity', $1)"
        await self.gpu.rows.execute("delete from services")
        await self.gpu.rows.execute(sql, source)

    async def polled(self) -> None:
        """Poll the rows and apply the desired services."""
        await self.gpu.manager.poll()
        await self.gpu.manager.reconciler.apply_offers()

    async def offered(self, **columns: Any) -> UUID:
        slot, items = {"slots:twin": 1}, [{"text": "a", "reference": "r"}]
        action = await self.gpu.granted(payload={"service": "twin", "items": items}, amounts=slot, **columns)
        await self.gpu.manager.accept_grants(
            [GrantPayload(id=action, grant_no=1, amounts=slot)], epoch=self.gpu.manager.epoch
        )
        return action

    @property
    def sources(self) -> list[str]:
        """The model directories that the worker was offered under the name, in order."""
        return [Path(spec["directory"]).name for spec in self.gpu.worker.offered]


@pytest_asyncio.fixture
async def twin(rows: Rows, tmp_path: Path) -> AsyncIterator[Twin]:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    async with driving(rows, models=tmp_path) as gpu:
        await gpu.manager._grants.stop_polling()
        twin = Twin(gpu, tmp_path)
        await twin.register("old")
        await twin.polled()
        await gpu.manager.poll()
        yield twin


@pytest_asyncio.fixture
async def gpu(rows: Rows) -> AsyncIterator[Gpu]:
    async with driving(rows) as gpu:
        yield gpu


async def test_actions_queued_for_a_busy_device_share_a_batch(gpu: Gpu, rows: Rows) -> None:
    first = await gpu.granted("a")
    await gpu.offer(first)
    _, answer = await gpu.worker.next_order()
    others = [await gpu.granted(text) for text in ("bb", "ccc")]
    await gpu.offer(*others)
    await gpu.scoring(jobs=3)
    answer.set_exception(WorkerDied("killed by the test"))
    assert [item["text"] for item in await gpu.worker.answer_next()] == ["bb", "ccc"]
    for action, score in zip(others, (2.0, 3.0), strict=True):
        assert (await rows.until_state(action, "settled"))["outcome"] == "ok"
        assert await gpu.scores(action) == [score]
    assert await rows.state(first) == ("settled", "infra_error", "worker_died")
    assert await rows.value("select scores from action_results where id = $1", first) is None


async def test_action_of_a_dead_worker_is_requeued_while_retries_remain(gpu: Gpu, rows: Rows) -> None:
    action = await gpu.granted("a", retries=1)
    _, answer = await gpu.worker.next_order()
    answer.set_exception(WorkerDied("killed by the test"))
    assert (await rows.until_state(action, "queued"))["failures"] == 1


async def test_action_queued_for_a_batch_can_be_cancelled(gpu: Gpu, rows: Rows) -> None:
    first = await gpu.granted("a")
    _, answer = await gpu.worker.next_order()
    second = await gpu.granted("bb")
    await gpu.scoring(jobs=2)
    await rows.unguarded(WISHED, second)
    assert (await rows.until_state(second, "settled"))["outcome"] == "cancelled"
    answer.set_exception(WorkerDied("killed by the test"))
    await rows.until_state(first, "settled")


async def test_cancelled_running_action_stays_cancelled_after_a_late_result(gpu: Gpu, rows: Rows) -> None:
    action = await gpu.granted("a")
    items, answer = await gpu.worker.next_order()
    await rows.unguarded(WISHED, action)
    assert (await rows.until_state(action, "settled"))["outcome"] == "cancelled"
    answer.set_result(
        {"error": "forward_failed", "message": "late", "states": {}, "used_bytes": 0, "moves": MOVES, "fitting": []}
    )
    other = await gpu.granted("bb")
    await gpu.worker.answer_next()
    await rows.until_state(other, "settled")
    assert await rows.state(action) == ("settled", "cancelled", None)
    assert [item["text"] for item in items] == ["a"]


async def test_cancel_request_read_before_the_items_is_applied(gpu: Gpu) -> None:
    """A poll can read the cancel request before the running state returns. This action has no row."""
    fence = Fence(uuid4(), 1)
    assert gpu.manager.allocate(GrantPayload(id=fence.action_id, grant_no=1, amounts=SLOT))
    await eventually(lambda: gpu.manager._grants.is_killed(fence))
    items = json.dumps({"service": "minilm", "items": [{"text": "a", "reference": "r"}]})
    row = SimpleNamespace(
        id=fence.action_id, grant_no=1, cancel=False, timeout_s=300.0, payload=items, registered_at=None
    )
    await gpu.manager.launch({fence: row})  # type: ignore[dict-item]
    assert gpu.manager.dispatcher.job_count == 0
    await eventually(lambda: not gpu.manager.has(fence))


async def test_score_timeout_counts_from_the_first_batch(gpu: Gpu, rows: Rows) -> None:
    computed = await gpu.granted("a", timeout_s=0.1)
    await gpu.worker.next_order()
    waits = await gpu.granted("bb", timeout_s=0.001)
    await gpu.offer(waits)
    await rows.until_state(waits, "running")
    later = await gpu.granted("ccc", timeout_s=0.001)
    await rows.until_state(computed, "settled")
    await rows.until_state(later, "running")
    assert await rows.state(computed) == ("settled", "infra_error", "score_timeout")
    assert await rows.state(waits) == ("running", None, None)


async def test_failed_batch_is_split_so_only_the_faulty_action_fails(gpu: Gpu, rows: Rows) -> None:
    first = await gpu.granted("busy")
    await gpu.offer(first)
    _, answer = await gpu.worker.next_order()
    bad, good = await gpu.granted("bad"), await gpu.granted("good")
    await gpu.offer(bad, good)
    await gpu.scoring(jobs=3)
    failed = EMPTY | {"error": "forward_failed", "message": "it", "states": {"minilm": "resident"}}
    answer.set_result(failed)
    for expected in (["bad", "good"], ["bad"]):
        items, answer = await gpu.worker.next_order()
        assert [item["text"] for item in items] == expected
        answer.set_result(failed)
    await gpu.worker.answer_next()
    assert (await rows.until_state(good, "settled"))["outcome"] == "ok"
    assert await rows.state(bad) == ("settled", "infra_error", "forward_failed")


async def test_worker_death_is_isolated_by_scoring_actions_separately(gpu: Gpu, rows: Rows) -> None:
    """After two more deaths the manager no longer blames a single action."""
    first = await gpu.granted("busy")
    await gpu.offer(first)
    _, answer = await gpu.worker.next_order()
    others = [await gpu.granted(text) for text in ("bad", "good", "worse")]
    await gpu.offer(*others)
    await gpu.scoring(jobs=4)
    for expected in (["bad", "good", "worse"], ["bad"], ["good"]):
        answer.set_exception(WorkerDied("killed by the test"))
        items, answer = await gpu.worker.next_order()
        assert [item["text"] for item in items] == expected
    answer.set_result(scored(items))
    items, answer = await gpu.worker.next_order()
    answer.set_exception(WorkerDied("killed by the test"))
    ends = [await rows.until_state(action, "settled") for action in others]
    assert [(end["outcome"], end["reason"]) for end in ends] == [DIED, ("ok", None), DIED]


async def test_repeated_worker_deaths_fail_remaining_actions_without_more_restarts(gpu: Gpu, rows: Rows) -> None:
    first = await gpu.granted("busy")
    await gpu.offer(first)
    _, answer = await gpu.worker.next_order()
    others = [await gpu.granted(text) for text in ("bb", "ccc", "dddd")]
    await gpu.offer(*others)
    await gpu.scoring(jobs=4)
    for _ in range(MAX_WORKER_DEATHS + 1):
        answer.set_exception(WorkerDied("killed by the test"))
        _, answer = await gpu.worker.next_order()
    answer.set_exception(WorkerDied("killed by the test"))
    ends = [await rows.until_state(action, "settled") for action in others]
    assert [(end["outcome"], end["reason"]) for end in ends] == [DIED] * 3
    after = await gpu.granted("after")
    assert [item["text"] for item in await gpu.worker.answer_next()] == ["after"]
    assert (await rows.until_state(after, "settled"))["outcome"] == "ok"


async def test_unexpected_error_fails_its_batch_but_not_the_next(gpu: Gpu, rows: Rows) -> None:
    action = await gpu.granted("a")
    _, answer = await gpu.worker.next_order()
    answer.set_exception(RuntimeError("not foreseen"))
    assert (await rows.until_state(action, "settled"))["reason"] == "forward_failed"
    other = await gpu.granted("bb")
    await gpu.worker.answer_next()
    assert (await rows.until_state(other, "settled"))["outcome"] == "ok"


async def test_unreadable_action_settles_without_blocking_other_actions(gpu: Gpu, rows: Rows) -> None:
    bad, good = await gpu.granted(payload={}), await gpu.granted("good")
    await gpu.offer(bad, good)
    await gpu.worker.answer_next()
    assert (await rows.until_state(good, "settled"))["outcome"] == "ok"
    assert (await rows.until_state(bad, "settled"))["reason"] == "setup_failed"


async def test_running_action_is_scored_once_its_items_can_be_loaded(
    gpu: Gpu, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    role = urlsplit(role_url(rows.owner_url, "gpu", "")).username
    await rows.execute(f"revoke select on action_specs from {role}")
    action = await gpu.granted("a", state="running")
    await eventually(lambda: "manager poll failed" in caplog.text)
    await rows.execute(f"grant select on action_specs to {role}")
    await gpu.worker.answer_next()
    assert (await rows.until_state(action, "settled"))["outcome"] == "ok"


async def test_actions_above_the_slots_are_requeued(gpu: Gpu, rows: Rows) -> None:
    actions = [await gpu.granted("a") for _ in range(SLOTS + 1)]
    await gpu.offer(*actions)
    assert (await rows.until_state(actions[-1], "queued"))["failures"] == 0


async def test_action_is_scored_by_the_latest_registration_of_its_service(twin: Twin, rows: Rows) -> None:
    """The node has not polled since the new registration."""
    await twin.register("new")
    action = await twin.offered()
    await twin.gpu.worker.answer_next()
    assert twin.sources == ["old", "new"]
    assert (await rows.until_state(action, "settled"))["outcome"] == "ok"
    (twin.models / "new" / "config.json").unlink()
    await twin.register("new")
    action = await twin.offered()
    assert (await rows.until_state(action, "settled"))["reason"] == "service_changed"


async def test_health_text_with_a_null_character_is_published(gpu: Gpu, rows: Rows) -> None:
    async with store_of(rows.owner_url, "gpu") as store, store.write() as tx:
        services = json.dumps([{"name": "j", "health": "engine_stays: \0"}])
        await publish_services(tx, services, "{}", node_id=gpu.manager.node_id, epoch=gpu.manager.epoch)
        [row] = await tx.fetch(
            text("select services::text as said from nodes where id = :id"), {"id": gpu.manager.node_id}
        )
    assert json.loads(row.said)[0]["health"] == "engine_stays: \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(("every_s", "counted"), [(0.0, [1, 2, 3]), (3600.0, [1, 1, 3])])
async def test_score_counter_is_published_periodically_and_with_state_changes(
    rows: Rows, every_s: float, counted: list[int]
) -> None:
    async with driving(rows, counter_flush_s=every_s) as gpu:
        found = []
        for breaks in (False, False, True):
            action = await gpu.granted("a")
            await gpu.worker.answer_next()
            await rows.until_state(action, "settled")
            if breaks:
                action = await gpu.granted("b")
                _, answer = await gpu.worker.next_order()
                answer.set_result(NOTHING | {"error": "forward_failed", "message": "broken by the test"})
                await rows.until_state(action, "settled")
            await gpu.manager.poll()
            [said] = json.loads(await rows.value("select services::text from nodes"))
            found.append(said["scores"])
    assert found == counted


async def test_stale_poll_does_not_undo_a_new_registration(twin: Twin, rows: Rows) -> None:
    """The poll has read the rows and then waits for a lock on the row that it refuses."""
    too_many = {"slots:twin": SLOTS + 1}
    refused = await twin.gpu.granted("a", amounts=too_many)
    async with rows.pool.acquire() as connection, connection.transaction():
        await connection.execute("select from actions where id = $1 for update", refused)
        poll = asyncio.create_task(twin.gpu.manager.poll())
        await rows.until_value(1, WAITING)
        await twin.register("new")
        action = await twin.offered()
        await twin.gpu.worker.answer_next()
        assert (await rows.until_state(action, "settled"))["outcome"] == "ok"
    await poll
    await twin.gpu.manager.reconciler.apply_offers()
    assert twin.sources == ["old", "new"]


async def test_re_registered_service_does_not_wait_for_another_load(twin: Twin, rows: Rows) -> None:
    twin.gpu.worker.may_restore.clear()
    try:
        await rows.execute("insert into services (name, load_requested_at) values ('minilm', now())")
        await twin.gpu.manager.poll()
        await eventually(lambda: twin.gpu.manager.reconciler._move_lock.locked())
        await rows.execute("delete from services where name = 'twin'")
        await rows.execute("insert into services (name, kind, source) values ('twin', 'similarity', 'new')")
        action = await twin.offered()
        await twin.gpu.worker.answer_next()
        assert (await rows.until_state(action, "settled"))["outcome"] == "ok"
        assert twin.gpu.manager.reconciler._move_lock.locked()
        await twin.gpu.manager.poll()
        assert not twin.gpu.manager.reconciler.has_pending_changes, "the load is somebody's already"
    finally:
        twin.gpu.worker.may_restore.set()


async def test_service_that_a_node_no_longer_offers_is_not_allocated(twin: Twin, rows: Rows) -> None:
    await twin.register("elsewhere")
    action = await twin.offered(retries=1)
    assert (await rows.until_state(action, "queued"))["failures"] == 1
    assert json.loads(await rows.value("select capacity::text from nodes")) == SLOTS_OF_MINILM
    assert not twin.gpu.manager.allocate(GrantPayload(id=action, grant_no=2, amounts={"slots:twin": 1}))


async def test_worker_death_from_a_new_registration_is_the_reported_reason(twin: Twin, rows: Rows) -> None:
    twin.gpu.worker.dies_of_offers = True
    await twin.register("new")
    action = await twin.offered()
    assert (await rows.until_state(action, "settled"))["reason"] == "worker_died"


async def test_action_waiting_for_a_re_registered_service_can_be_cancelled(twin: Twin, rows: Rows) -> None:
    twin.gpu.worker.may_offer.clear()
    await twin.register("new")
    action = await twin.offered()
    await eventually(lambda: twin.sources == ["old", "new"])
    await rows.unguarded(WISHED, action)
    await twin.gpu.manager.poll()
    assert (await rows.until_state(action, "settled"))["outcome"] == "cancelled"
    twin.gpu.worker.may_offer.set()
    await twin.gpu.manager.reconciler.apply_offers()
    assert (twin.sources, twin.gpu.manager.dispatcher.job_count) == (["old", "new"], 0)


async def test_action_waits_while_the_registration_cannot_be_read(twin: Twin, rows: Rows) -> None:
    role = urlsplit(role_url(rows.owner_url, "gpu", "")).username
    await twin.register("new")
    await rows.execute(f"revoke select on services from {role}")
    await rows.execute(f"grant select (name, kind, registered_at) on services to {role}")
    action = await twin.offered()
    await rows.until_state(action, "running")
    await eventually(lambda: not twin.gpu.manager.fences)
    await rows.execute(f"grant select on services to {role}")
    await twin.polled()
    await twin.gpu.worker.answer_next()
    settled = await rows.until_state(action, "settled")
    assert (settled["outcome"], settled["failures"], twin.sources) == ("ok", 0, ["old", "new"])


async def test_node_publishes_services_with_state_scores_and_health(gpu: Gpu, rows: Rows) -> None:
    async def state() -> str:
        [service] = json.loads(await rows.value("select services::text from nodes"))
        return f"{service['name']} {service['state']} {service['scores']} {service['health']}"

    assert await state() == "minilm cold 0 ok"
    await gpu.granted("a")
    await gpu.worker.answer_next()

    async def is_resident() -> bool:
        return await state() == "minilm resident 1 ok"

    await rows.until(is_resident)
