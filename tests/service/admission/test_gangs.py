"""Test gangs on a real Postgres: members are admitted, granted and settled in one commit."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from arl_admission.service import AdmissionService
from arl_admission.settings import AdmissionSettings
from arl_core.domain.model import Fence, Grant
from arl_core.policies.spar import SparPolicy
from arl_scheduler.queries import repository
from arl_wire.internal.admission import AdmitItem, AdmitResponse
from support.builders import EPOCH, a_submission
from support.conditions import eventually
from support.peers import RecordingPeers
from support.rows import Rows, rows_in, store_of
from support.scheduler import leading

SETTINGS = AdmissionSettings(port=1, database_url="postgresql://", service_token="t" * 16, scheduler_url="http://s")
AMOUNTS = {"cpu_milli": 1000}
ALIKE = "select count(distinct {}) from actions where id = any($1)"
ENDS = "select array_agg(outcome || ' ' || coalesce(reason, '-') order by reason nulls first) from actions"


async def a_gang(rows: Rows, size: int, **columns: Any) -> list[UUID]:
    gang = {"id": str(uuid4()), "size": size}
    return [await rows.action(demand=AMOUNTS, gang=gang, **columns) for _ in range(size)]


async def states(rows: Rows, ids: list[UUID]) -> set[str]:
    return set(await rows.value("select array_agg(state) from actions where id = any($1)", ids))


def item(rows: Rows, key: str | None = None, **changed: Any) -> AdmitItem:
    return AdmitItem(project_id=rows.project, action=a_submission(**changed), key=key, body_hash="00" if key else None)


def codes(answer: AdmitResponse) -> list[str | None]:
    return [each.problem.code if each.problem is not None else None for each in answer.items]


class TestScheduling:
    async def test_gang_is_granted_in_one_commit_once_all_members_fit(self, database: str) -> None:
        async with rows_in(database) as rows, leading(rows, policy=SparPolicy(is_resizing=True)) as leader:
            await eventually(lambda: leader.view() is not None)
            await rows.node("small", cores=2)
            gang = await a_gang(rows, 3)
            other = await rows.action(demand=AMOUNTS)
            await eventually(lambda: is_granted(rows, other))
            assert await states(rows, gang) == {"queued"}
            view = leader.view()
            assert view is not None
            assert all(view[0].queue_position(id) is not None for id in gang)
            await rows.node("large", cores=2)
            await eventually(lambda: is_granted(rows, gang[0]))
            assert await states(rows, gang) == {"granted"}
            assert await rows.value(ALIKE.format("granted_at"), gang) == 1, "one transaction"

    async def test_gang_with_a_cancelled_member_is_not_granted(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "scheduler") as store:
            node = await rows.node(cores=4)
            gang, alone = await a_gang(rows, 2), await rows.action(demand=AMOUNTS)
            await rows.unguarded("update actions set cancel_requested_at = now() where id = $1", gang[1])
            grants = [
                Grant(fence=Fence(id, 1), node=node, resources=AMOUNTS, gang=UUID(int=9) if id in gang else None)
                for id in (*gang, alone)
            ]
            async with store.write() as tx:
                assert await repository.grant(tx, grants, epochs={node: EPOCH}) == {Fence(alone, 1)}
            assert await states(rows, gang) == {"queued"}
            await rows.unguarded("update actions set cancel_requested_at = null where id = $1", gang[1])
            async with store.write() as tx:
                granted = await repository.grant(tx, grants[:2], epochs={node: EPOCH})
            assert granted == {Fence(id, 1) for id in gang}

    @pytest.mark.parametrize(
        ("change", "ends"),
        [
            ("cancel_requested_at = now()", ["cancelled -", "cancelled gang_cancelled", "cancelled gang_cancelled"]),
            ("deadline_at = now()", ["deadline_in_queue -", *["deadline_in_queue gang_deadline"] * 2]),
        ],
    )
    async def test_cancelled_or_late_queued_member_settles_the_whole_gang(
        self, database: str, change: str, ends: list[str]
    ) -> None:
        async with rows_in(database) as rows:
            await rows.node(cores=1)
            gang = await a_gang(rows, 3)
            await rows.unguarded(f"update actions set {change} where id = $1", gang[1])
            async with leading(rows):
                await rows.until_value(3, "select count(*) from actions where state = 'settled'")
            assert await rows.value(ENDS) == ends

    @pytest.mark.parametrize(
        ("change", "ends"),
        [
            ("cancel_requested_at = now()", ["cancelled -", "cancelled gang_cancelled"]),
            ("deadline_at = now()", ["deadline_in_queue -", "deadline_in_queue gang_deadline"]),
        ],
    )
    async def test_cancelled_or_late_member_in_paused_queue_settles_the_gang(
        self, database: str, change: str, ends: list[str]
    ) -> None:
        async with rows_in(database) as rows:
            await rows.execute("update queues set paused_at = now() where id = $1", rows.queue)
            gang = await a_gang(rows, 2)
            await rows.unguarded(f"update actions set {change} where id = $1", gang[1])
            async with leading(rows):
                await rows.until_value(2, "select count(*) from actions where state = 'settled'")
            assert await rows.value(ENDS) == ends

    async def test_new_leader_cancels_members_of_an_incomplete_gang(self, database: str) -> None:
        async with rows_in(database) as rows:
            await rows.node(cores=4)
            await rows.action(demand=AMOUNTS, gang={"id": str(uuid4()), "size": 2})
            whole = await a_gang(rows, 2)
            async with leading(rows):
                await eventually(lambda: is_granted(rows, whole[0]))
                await rows.until_value(1, "select count(*) from actions where state = 'settled'")
            assert await rows.value(ENDS + " where state = 'settled'") == ["cancelled gang_cancelled"]

    async def test_retried_gang_member_is_granted_without_its_gang(self, database: str) -> None:
        async with rows_in(database) as rows, leading(rows):
            await rows.node(cores=1)
            back = await rows.action(demand=AMOUNTS, gang={"id": str(uuid4()), "size": 3}, grant_no=1, failures=1)
            await eventually(lambda: is_granted(rows, back))


class TestAdmission:
    async def test_gang_is_admitted_in_one_commit_and_only_once(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            peers = RecordingPeers()
            admission = AdmissionService(store, peers, SETTINGS)
            gang = [item(rows, key=f"k:{n}") for n in range(3)]
            first, second = await admission.admit_gang(gang), await admission.admit_gang(gang)
            assert codes(first) == [None] * 3
            assert [each.id for each in second.items] == [each.id for each in first.items]
            assert not any(each.created for each in second.items)
            sql = (
                "select count(distinct gang), min((gang ->> 'size')::int), count(distinct xmin::text) from action_specs"
            )
            assert tuple(await rows.pool.fetchrow(sql)) == (1, 3, 1)
            other = [each.model_copy(update={"body_hash": "11"}) for each in gang]
            assert codes(await admission.admit_gang(other)) == ["idempotency_key_reused"] * 3
            more = [*gang, item(rows, key="k:3")]
            assert codes(await admission.admit_gang(more)) == ["idempotency_key_reused"] * 4

    async def test_gang_that_cannot_run_as_a_whole_is_refused(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node(cores=2, memory_mib=4096)
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            answer = await admission.admit_gang([item(rows), item(rows, demand={"cpu": 3})])
            assert codes(answer) == ["gang_refused", "demand_impossible"]
            answer = await admission.admit_gang([item(rows, demand={"cpu": 1})] * 3)
            assert codes(answer) == ["demand_impossible"] * 3
            (problem, *_) = [each.problem for each in answer.items if each.problem is not None]
            assert problem.errors[0].field == "gang"
            assert await rows.value("select count(*) from actions") == 0

    async def test_queue_without_room_for_all_members_refuses_the_gang(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            settings = SETTINGS.model_copy(update={"default_max_queued": 2})
            admission = AdmissionService(store, RecordingPeers(), settings)
            assert codes(await admission.admit_gang([item(rows)] * 3)) == ["queue_full"] * 3
            assert codes(await admission.admit_gang([item(rows)] * 2)) == [None] * 2

    async def test_concurrent_gangs_fill_a_queue_exactly_to_its_limit(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            settings = SETTINGS.model_copy(update={"default_max_queued": 8})
            admission = AdmissionService(store, RecordingPeers(), settings)
            gangs = [admission.admit_gang([item(rows)] * 3) for _ in range(6)]
            singles = [admission.admit([item(rows)] * 3) for _ in range(6)]
            await asyncio.gather(*gangs, *singles)
            assert await rows.value("select count(*) from actions") == 8

    async def test_repeated_key_returns_the_admitted_actions_after_nodes_shrank(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node(cores=4)
            gang, alone = [item(rows, key=f"k:{n}") for n in range(4)], [item(rows, key="s", demand={"cpu": 2})]
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            first, single = await admission.admit_gang(gang), await admission.admit(alone)
            await rows.unguarded("""update nodes set capacity = capacity || '{"cpu_milli": 1000}'""")
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            assert [each.id for each in (await admission.admit_gang(gang)).items] == [each.id for each in first.items]
            assert (await admission.admit(alone)).items[0].id == single.items[0].id
            other = [each.model_copy(update={"body_hash": "11"}) for each in (*gang, *alone)]
            assert codes(await admission.admit_gang(other[:4])) == ["idempotency_key_reused"] * 4
            assert codes(await admission.admit(other[4:])) == ["idempotency_key_reused"]
            assert codes(await admission.admit([item(rows, demand={"cpu": 2})])) == ["demand_impossible"]


async def is_granted(rows: Rows, action: UUID) -> bool:
    return bool(await rows.value("select state = 'granted' from actions where id = $1", action))
