"""Test the refusals of admission with their reasons, on a real Postgres."""

import asyncio
import json
from typing import Any

import pytest

from arl_admission.service import AdmissionService
from support.admission import SETTINGS, admitted, an_item
from support.conditions import eventually
from support.peers import RecordingPeers
from support.rows import Rows, rows_in, store_of


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
