"""Test admission on a real Postgres: inserted rows, refusals with their reasons, and idempotency keys."""

import asyncio
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from arl_admission.normalise import NewAction, normalise
from arl_admission.service import AdmissionService
from arl_admission.settings import AdmissionSettings
from arl_scheduler.queries.repository import poll
from arl_store.tx import PostgresStore
from arl_store.values import uuid7
from arl_wire.internal.admission import AdmitItem, CancelActionsRequest, EndTrajectoryRequest
from arl_wire.internal.scheduler import ActionsAdmittedNotification
from support.builders import a_submission
from support.conditions import eventually
from support.peers import RecordingPeers
from support.rows import Rows, rows_in, store_of

SETTINGS = AdmissionSettings(port=1, database_url="postgresql://", service_token="t" * 16, scheduler_url="http://s")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(shared: str) -> AsyncIterator[PostgresStore]:
    async with store_of(shared, "admission") as store:
        yield store


@pytest.fixture
def peers() -> RecordingPeers:
    return RecordingPeers()


@pytest.fixture
def admission(store: PostgresStore, peers: RecordingPeers) -> AdmissionService:
    return AdmissionService(store, peers, SETTINGS)


def an_item(rows: Rows, *, key: str | None = None, **changed: Any) -> AdmitItem:
    action = a_submission(**changed)
    body_hash = sha256(action.model_dump_json().encode()).hexdigest() if key else None
    return AdmitItem(project_id=rows.project, action=action, key=key, body_hash=body_hash)


async def admitted(admission: AdmissionService, *items: AdmitItem) -> list[UUID]:
    answers = (await admission.admit(items)).items
    assert [answer.problem for answer in answers] == [None] * len(items)
    return [answer.id for answer in answers if answer.id is not None]


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


class TestRefusals:
    async def test_impossible_actions_of_a_batch_are_refused_with_their_field(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node(cores=4, memory_mib=1000)
            items = [an_item(rows), an_item(rows, demand={"cpu": {"min": 5, "max": 9}}), an_item(rows)]
            items.append(an_item(rows, demand={"memory_mib": 1001}))
            answers = (await AdmissionService(store, RecordingPeers(), SETTINGS).admit(items)).items
            assert [answer.id is not None for answer in answers] == [True, False, True, False]
            problems = [answer.problem for answer in answers if answer.problem is not None]
            assert [problem.code for problem in problems] == ["demand_impossible"] * 2
            assert [problem.errors[0].field for problem in problems] == ["demand.cpu", "demand.memory_mib"]
            assert await rows.value("select count(*) from actions") == 2

    async def test_first_submissions_wait_until_the_nodes_are_read(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node(cores=2)
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            large = [admission.admit([an_item(rows, demand={"cpu": 64})]) for _ in range(3)]
            answers = [each.items[0] for each in await asyncio.gather(*large)]
            assert [answer.problem and answer.problem.code for answer in answers] == ["demand_impossible"] * 3

    async def test_demand_that_fits_no_single_node_is_refused(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node("wide", cores=8, memory_mib=1000)
            await rows.node("deep", cores=1, memory_mib=8000)
            item = an_item(rows, demand={"cpu": 8, "memory_mib": 8000})
            (answer,) = (await AdmissionService(store, RecordingPeers(), SETTINGS).admit([item])).items
            assert answer.problem is not None
            assert answer.problem.errors[0].field == "demand"

    async def test_required_limit_that_no_node_enforces_is_refused(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node(enforced=("memory",))
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            items = [an_item(rows, require=["memory"]), an_item(rows, require=["pids"])]
            enforced, not_enforced = (await admission.admit(items)).items
            assert enforced.id is not None
            assert not_enforced.problem is not None
            assert not_enforced.problem.code == "requirement_not_enforced"
            assert not_enforced.problem.errors[0].field == "require"

    async def test_unknown_template_is_refused_with_a_list_of_available_templates(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node("one", templates=("debian",))
            await rows.node("two", templates=("alpine", "debian"))
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            await admitted(admission, *(an_item(rows, environment={"template": name}) for name in ("host", "debian")))
            (answer,) = (await admission.admit([an_item(rows, environment={"template": "moon"})])).items
            assert answer.problem is not None
            assert (answer.problem.status, answer.problem.code) == (422, "template_not_found")
            assert answer.problem.errors[0].field == "environment.template"
            assert "Available: alpine, debian, host" in answer.problem.detail

    @pytest.mark.parametrize(
        ("node", "beat", "project", "code"),
        [
            (None, "", "a", "endpoint_not_found"),
            ("other", "1 hour", "a", "endpoint_not_found"),
            ("search", "1 hour", "a", None),
            ("search", "-1 day", "a", None),  # its broker may return
            ("private", "1 hour", "a", None),
            ("private", "1 hour", "b", "endpoint_not_found"),
        ],
    )
    async def test_endpoint_that_no_broker_has_or_had_is_refused(
        self, database: str, node: str | None, beat: str, project: str, code: str | None
    ) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            if node is not None:
                offered = {"name": node, "methods": ["POST"], "projects": ["a"] if node == "private" else None}
                id = await rows.node("broker", beat=beat)
                sql = "update nodes set kind = 'api', endpoints = $2 where id = $1"
                await rows.execute(sql, id, json.dumps([offered]))
            called = "private" if node == "private" else "search"
            item = an_item(rows, argv=None, kind="call", endpoint=called, request={}).model_copy(
                update={"project": project}
            )
            (answer,) = (await AdmissionService(store, RecordingPeers(), SETTINGS).admit([item])).items
            assert (answer.problem.code if answer.problem is not None else None) == code
            if code is not None:
                assert answer.problem is not None
                assert answer.problem.errors[0].field == "endpoint"
                assert f"Available: {'other' if node == 'other' else 'none'}." in answer.problem.detail

    async def test_service_that_no_node_has_or_had_is_refused(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            item = an_item(rows, argv=None, kind="score", service="nothing", items=[{"text": "x"}])
            (answer,) = (await admission.admit([item])).items
            assert answer.problem is not None
            assert answer.problem.code == "reward_service_not_found"

    async def test_demand_larger_than_the_nodes_with_the_template_is_refused(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node("small", cores=1, templates=("debian",))
            await rows.node("large", cores=8)
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            wide = an_item(rows, demand={"cpu": 4}, environment={"template": "debian"})
            (answer,) = (await admission.admit([wide])).items
            assert answer.problem is not None
            assert answer.problem.errors[0].field == "demand.cpu"

    async def test_new_template_is_accepted_after_the_node_cache_refreshes(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node()
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            item = an_item(rows, environment={"template": "new"})
            assert (await admission.admit([item])).items[0].problem is not None
            await rows.execute('update nodes set templates = \'[{"name": "new"}]\'')

            async def is_known() -> bool:
                return (await admission.admit([item])).items[0].problem is None

            await eventually(is_known)

    async def test_action_without_template_uses_the_template_of_its_live_environment(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.environment(
                "x",
                await rows.node(templates=("debian", "alpine")),
                template="debian",
                memory_mib=512,
                disk_mib=128,
                pids=256,
            )
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            scope = {"scope": "trajectory"}
            same = [{**scope, "template": "debian"}, scope]
            await admitted(admission, *(an_item(rows, trajectory="x", environment=each) for each in same))
            other = an_item(rows, trajectory="x", environment={**scope, "template": "alpine"})
            (answer,) = (await admission.admit([other])).items
            assert answer.problem is not None
            assert answer.problem.errors[0].field == "environment.template"
            assert "was created from template 'debian'" in answer.problem.detail

    async def test_demand_above_the_node_of_a_live_environment_is_refused(self, database: str) -> None:
        """A live environment stays on its node, so capacity on other nodes does not count."""
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            here = await rows.node("here", cores=2)
            there = await rows.node("there", cores=8)
            await rows.unguarded("""update nodes set capacity = capacity || '{"npu": 4}' where id = $1""", there)
            await rows.environment("x", here, memory_mib=512, disk_mib=128, pids=256)
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            for demand, field in (({"resources": {"npu": 1}}, "demand.resources.npu"), ({"cpu": 4}, "demand.cpu")):
                at_home = an_item(rows, trajectory="x", environment={"scope": "trajectory"}, demand=demand)
                (answer,) = (await admission.admit([at_home])).items
                assert answer.problem is not None
                assert (answer.problem.code, answer.problem.errors[0].field) == ("demand_impossible", field)
                await admitted(admission, an_item(rows, trajectory="y", demand=demand))
            await admitted(admission, an_item(rows, trajectory="x", environment={"scope": "trajectory"}))

    async def test_limit_not_enforced_on_the_live_environments_node_is_refused(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            await rows.node("strict", enforced=("memory",))
            await rows.environment("x", await rows.node("plain"), memory_mib=512, disk_mib=128, pids=256)
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            wanted: dict[str, Any] = {"environment": {"scope": "trajectory"}, "require": ["memory"]}
            (answer,) = (await admission.admit([an_item(rows, trajectory="x", **wanted)])).items
            assert answer.problem is not None
            assert (answer.problem.code, answer.problem.errors[0].field) == ("requirement_not_enforced", "require")
            await admitted(admission, an_item(rows, trajectory="y", **wanted))

    async def test_repeated_key_returns_its_action_after_the_environment_changed(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            admission, node = AdmissionService(store, RecordingPeers(), SETTINGS), await rows.node()
            wanted: dict[str, Any] = {"trajectory": "x", "environment": {"scope": "trajectory"}, "key": "first"}
            item = an_item(rows, **wanted, demand={"memory_mib": 1024})
            (id,) = await admitted(admission, item)
            await rows.environment("x", node, memory_mib=512, disk_mib=1024, pids=1024)
            assert await admitted(admission, item) == [id]

    async def test_refused_demand_above_environment_memory_leaves_its_key_unused(self, database: str) -> None:
        """A stored key without an inserted action would return an unknown id for a day."""
        async with rows_in(database) as rows, store_of(database, "admission") as store:
            admission = AdmissionService(store, RecordingPeers(), SETTINGS)
            await rows.environment("small", await rows.node(), memory_mib=100)
            wanted: dict[str, Any] = {"trajectory": "small", "environment": {"scope": "trajectory"}, "key": "larger"}
            item = an_item(rows, **wanted, demand={"memory_mib": 200})
            (answer,) = (await admission.admit([item])).items
            assert answer.problem is not None
            assert (answer.problem.status, answer.problem.errors[0].field) == (422, "demand.memory_mib")
            await rows.execute("update environments set delete_requested_at = now(), ended_at = now()")
            (id,) = await admitted(admission, item)
            assert await rows.value("select array_agg(id) from actions") == [id]

    async def test_any_demand_is_accepted_while_no_node_is_known(self, admission: AdmissionService, rows: Rows) -> None:
        await admitted(admission, an_item(rows, demand={"cpu": 4096}, require=["disk"]))


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
        assert (await admission.end_trajectory(wish)).count == 2
        wished = [(await rows.of(id))["cancel_requested_at"] is not None for id in (mine, other, done)]
        assert wished == [True, False, False]
        sql = "select delete_requested_at is not null from environments where id = $1"
        assert await rows.value(sql, environment)
        assert (await admission.end_trajectory(wish)).count == 0


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
            demand={"cpu": {"min": 0.5, "max": 4}},
            elasticity={"model": "table", "seconds": {"0.5": 8, "4": 1}, "resizable": "grow"},
        )
        assert row.demand["cpu_milli"] == 500
        assert row.elastic == {
            "resource": "cpu_milli",
            "min": 500,
            "max": 4000,
            "step": 1000,
            "elasticity": {"model": "table", "seconds": {"500": 8.0, "4000": 1.0}},
            "resizable": "grow",
        }

    def test_range_with_equal_bounds_is_not_elastic(self) -> None:
        assert self.row(demand={"cpu": {"min": 2, "max": 2}}).elastic is None

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
