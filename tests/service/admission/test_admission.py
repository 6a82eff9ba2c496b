"""Test admission on a real Postgres: inserted rows, idempotency keys and cancel requests."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from arl_admission.normalise import NewAction, normalise
from arl_admission.service import AdmissionService
from arl_scheduler.queries.repository import poll
from arl_store.tx import PostgresStore
from arl_store.values import uuid7
from arl_wire.internal.admission import AdmitItem, CancelActionsRequest, EndTrajectoryRequest
from arl_wire.internal.scheduler import ActionsAdmittedNotification
from support.admission import SETTINGS, admitted, an_item
from support.builders import a_submission
from support.peers import RecordingPeers
from support.rows import Rows, store_of


class TestAdmit:
    async def test_batch_of_actions_is_inserted_in_one_statement(self, admission: AdmissionService, rows: Rows) -> None:
        ids = await admitted(admission, *(an_item(rows, task=f"t{number % 3}") for number in range(50)))
        sql = "select count(*), count(distinct (xmin::text, cmin::text)) from actions where id = any($1)"
        assert tuple(await rows.pool.fetchrow(sql, ids)) == (50, 1)

    async def test_notification_carries_the_rows_that_a_scheduler_poll_reads(
        self, admission: AdmissionService, rows: Rows, peers: RecordingPeers, shared: str
    ) -> None:
        ids = await admitted(admission, *(an_item(rows, deadline_s=9.5, trajectory="x") for _ in range(3)))
        (hint,) = peers.bodies("/internal/admitted")
        async with store_of(shared, "scheduler") as scheduler, scheduler.read() as tx:
            polled = {row.id: row for row in (await poll(tx, checkpoint=0)).queued}
        assert isinstance(hint, ActionsAdmittedNotification)
        assert hint.actions == [polled[id] for id in ids]

    async def test_action_ids_are_in_the_order_of_the_batch(self, admission: AdmissionService, rows: Rows) -> None:
        ids = await admitted(admission, *(an_item(rows) for _ in range(20)))
        assert ids == sorted(ids)

    async def test_concurrent_submissions_share_an_insert(self, admission: AdmissionService, rows: Rows) -> None:
        answers = await asyncio.gather(*(admitted(admission, an_item(rows)) for _ in range(30)))
        ids = [id for answer in answers for id in answer]
        inserts = await rows.value("select count(distinct xmin::text) from actions where id = any($1)", ids)
        assert inserts <= 3

    async def test_unstorable_action_does_not_block_other_actions_of_its_batch(
        self, admission: AdmissionService, rows: Rows
    ) -> None:
        items = [an_item(rows) for _ in range(3)]
        items[1].action = items[1].action.model_copy(update={"timeout_s": 1e-46})
        answers = (await admission.admit(items)).items
        assert [answer.problem.code if answer.problem else None for answer in answers] == [None, "internal", None]
        there = {answer.id for answer in answers} - {None}
        assert await rows.value("select count(*) from actions where id = any($1)", list(there)) == 2

    async def test_deadline_is_stored_relative_to_the_insert_time(
        self, admission: AdmissionService, rows: Rows
    ) -> None:
        (id,) = await admitted(admission, an_item(rows, deadline_s=12.5))
        row = await rows.of(id)
        assert (row["deadline_at"] - row["created_at"]).total_seconds() == 12.5


class TestIdempotencyKey:
    async def test_same_key_and_body_return_the_same_action(
        self, admission: AdmissionService, rows: Rows, peers: RecordingPeers
    ) -> None:
        first = await admitted(admission, an_item(rows, key="again"))
        assert await admitted(admission, an_item(rows, key="again")) == first
        assert len(peers.hints) == 1

    async def test_same_key_with_another_body_is_refused(self, admission: AdmissionService, rows: Rows) -> None:
        await admitted(admission, an_item(rows, key="other"))
        (answer,) = (await admission.admit([an_item(rows, key="other", argv=["false"])])).items
        assert answer.problem is not None
        assert (answer.problem.code, answer.problem.status) == ("idempotency_key_reused", 422)
        assert answer.problem.errors[0].field == "header.Idempotency-Key"

    async def test_key_repeated_within_one_batch_creates_one_action(
        self, admission: AdmissionService, rows: Rows
    ) -> None:
        first, second = await admitted(admission, an_item(rows, key="both"), an_item(rows, key="both"))
        assert first == second

    async def test_two_concurrent_admissions_of_one_key_create_one_row(
        self, store: PostgresStore, shared: str, rows: Rows
    ) -> None:
        trajectory = "raced"
        async with store_of(shared, "admission") as other:
            pair = [AdmissionService(each, RecordingPeers(), SETTINGS) for each in (store, other)]
            for number in range(10):
                item = an_item(rows, key=f"race-{number}", trajectory=trajectory)
                one, two = await asyncio.gather(*(admitted(each, item) for each in pair))
                assert one == two
        assert await rows.value("select count(*) from actions where trajectory = $1", trajectory) == 10

    async def test_key_past_its_retention_can_be_used_again(self, admission: AdmissionService, rows: Rows) -> None:
        first = await admitted(admission, an_item(rows, key="old"))
        await rows.execute("update submissions set expires_at = now() - interval '1 second' where key = 'old'")
        second = await admitted(admission, an_item(rows, key="old", argv=["false"]))
        assert second != first
        assert await admitted(admission, an_item(rows, key="old", argv=["false"])) == second

    async def test_same_key_in_another_project_creates_another_action(
        self, admission: AdmissionService, rows: Rows
    ) -> None:
        other = await rows.value("insert into projects (name) values ('q') returning id")
        item = an_item(rows, key="mine")
        mine, theirs = await admitted(admission, item, item.model_copy(update={"project_id": other}))
        assert mine != theirs


class TestCancelRequests:
    async def test_cancel_marks_unsettled_actions_of_its_project_once(
        self, admission: AdmissionService, rows: Rows, peers: RecordingPeers
    ) -> None:
        other = await rows.value("insert into projects (name) values ('r') returning id")
        queued, settled = await rows.action(), await rows.action(state="settled", outcome="ok")
        foreign = await rows.action(project_id=other)
        wish = CancelActionsRequest(project_id=rows.project, ids=[settled, queued, foreign, uuid7()])
        assert (await admission.cancel(wish)).count == 1
        assert (await admission.cancel(wish)).count == 0
        wished = [(await rows.of(id))["cancel_requested_at"] is not None for id in (queued, settled, foreign)]
        assert wished == [True, False, False]
        assert peers.bodies("/internal/admitted") == [ActionsAdmittedNotification(actions=[])]

    async def test_ending_a_trajectory_cancels_its_actions_and_requests_environment_deletion(
        self, admission: AdmissionService, rows: Rows
    ) -> None:
        node = await rows.node("n-end")
        environment = await rows.environment("ends", node)
        mine, other = await rows.action(trajectory="ends"), await rows.action(trajectory="stays")
        done = await rows.action(trajectory="ends", state="settled", outcome="ok")
        wish = EndTrajectoryRequest(project_id=rows.project, task="t", trajectory="ends")
        assert (await admission.trajectories.end(wish)).count == 2
        wished = [(await rows.of(id))["cancel_requested_at"] is not None for id in (mine, other, done)]
        assert wished == [True, False, False]
        sql = "select delete_requested_at is not null from environments where id = $1"
        assert await rows.value(sql, environment)
        assert (await admission.trajectories.end(wish)).count == 0


class TestNormalise:
    def new(self, **changed: Any) -> NewAction:
        return normalise(AdmitItem(project_id=1, action=a_submission(**changed)), id=UUID(int=1), queue_id=1)

    def row(self, **changed: Any) -> Any:
        return self.new(**changed).to_queued_row(submitted=0.0, deadline=None)

    @pytest.mark.parametrize(("cores", "milli"), [(1, 1000), (0.5, 500), (0.0101, 10), (1.1, 1100), (4096, 4096000)])
    def test_fractional_cores_are_stored_as_integer_milli_cores(self, cores: float, milli: int) -> None:
        assert self.row(demand={"cpu": cores}).demand["cpu_milli"] == milli

    def test_range_is_elastic_and_its_minimum_is_the_demand(self) -> None:
        row = self.row(
            demand={"cpu": {"min": 1, "max": 4, "exclusive": True}},
            elasticity={"model": "table", "seconds": {"1": 8, "4": 1}, "resizable": "grow"},
        )
        assert row.demand["cpu_milli"] == 1000
        assert row.elastic == {
            "resource": "cpu_milli",
            "min": 1000,
            "max": 4000,
            "step": 1000,
            "elasticity": {"model": "table", "seconds": {"1000": 8.0, "4000": 1.0}},
            "resizable": "grow",
        }

    def test_range_with_equal_bounds_is_not_elastic(self) -> None:
        assert self.row(demand={"cpu": {"min": 2, "max": 2, "exclusive": True}}).elastic is None

    def test_actions_with_the_same_program_and_demand_share_a_class(self) -> None:
        one = self.new(trajectory="a", argv=["pytest", "-q"], priority=3, labels={"x": "y"}, timeout_s=5)
        two = self.new(trajectory="b", argv=["pytest", "-x"], env={"A": "1"})
        assert one.class_key == two.class_key

    @pytest.mark.parametrize(
        "changed",
        [
            {"argv": ["python"]},
            {"profile": "toolz/unit"},
            {"demand": {"cpu": 2}},
            {"demand": {"memory_mib": 64}},
            {"demand": {"cpu": {"min": 1, "max": 2}}},
            {"trajectory": "a", "environment": {"scope": "trajectory"}},
        ],
    )
    def test_different_program_demand_or_environment_is_another_class(self, changed: dict[str, Any]) -> None:
        assert self.new(**changed).class_key != self.new().class_key

    def test_actions_of_one_profile_share_a_class_across_programs(self) -> None:
        one, two = [self.new(argv=[program], profile="toolz/unit") for program in ("pytest", "make")]
        assert one.class_key == two.class_key

    def test_same_action_in_another_queue_is_another_class(self) -> None:
        item = AdmitItem(project_id=1, action=a_submission())
        keys = {normalise(item, id=UUID(int=1), queue_id=queue).class_key for queue in (1, 2)}
        assert len(keys) == 2
