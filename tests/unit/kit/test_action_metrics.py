"""Test the metrics of settled actions: exact counts and sums, and a limited number of task labels."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from prometheus_client import CollectorRegistry

from arl_kit import action_metrics
from arl_kit.action_metrics import (
    MAX_PROJECTS,
    MAX_TASKS,
    MAX_TASKS_OF_PROJECT,
    MAX_WAITING,
    MIN_TASKS_OF_PROJECT,
    ActionMetrics,
    CoreTime,
    TaskLabels,
)
from arl_kit.metrics import Metrics
from arl_store.tx import PostgresStore

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CODING = {"project": "default", "task": "coding", "kind": "exec"}


@dataclass
class Names:
    """The names of queues; a store that is `down` answers no statement, and one with `may_answer` waits for it."""

    names: Mapping[int, tuple[str, str]]
    down: bool = False
    reads: int = 0
    running: int = 0
    max_running: int = 0
    may_answer: asyncio.Event | None = None

    async def fetch(self, _: object, parameters: Mapping[str, Any]) -> Sequence[Any]:
        self.reads += 1
        self.running += 1
        self.max_running = max(self.running, self.max_running)
        if self.may_answer is not None:
            await self.may_answer.wait()
        self.running -= 1
        if self.down:
            raise ConnectionError("the database is away")
        return [SimpleNamespace(id=id, project=self.names[id][0], task=self.names[id][1]) for id in parameters["ids"]]

    @asynccontextmanager
    async def read(self) -> AsyncIterator["Names"]:
        yield self


@dataclass(kw_only=True)
class Ended:
    """A settled row: granted 2 s after its creation, run for 3 s, settled 0.5 s later."""

    id: UUID = field(default_factory=uuid4)
    queue_id: int = 1
    kind: str = "exec"
    outcome: str | None = "ok"
    reason: str | None = None
    created_at: datetime = BEGIN
    granted_at: datetime | None = field(default_factory=lambda: BEGIN + timedelta(seconds=2))
    settled_at: datetime | None = field(default_factory=lambda: BEGIN + timedelta(seconds=5.5))
    run_us: int | None = 3_000_000


def metrics_of(store: Names) -> tuple[ActionMetrics, CollectorRegistry]:
    metrics = Metrics()
    return ActionMetrics(metrics, TaskLabels(cast("PostgresStore", store))), metrics.registry


async def test_settled_action_is_observed_once_with_the_parts_of_its_time() -> None:
    actions, registry = metrics_of(Names({1: ("default", "coding")}))
    actions.record([Ended()])
    await actions.wait_until_counted()
    for name, expected in (("completion", 5.5), ("queueing", 2.0), ("run", 3.0), ("overhead", 0.5)):
        assert registry.get_sample_value(f"tangram_action_{name}_seconds_sum", CODING) == expected
        assert registry.get_sample_value(f"tangram_action_{name}_seconds_count", CODING) == 1
    bucket = "tangram_action_completion_seconds_bucket"
    assert registry.get_sample_value(bucket, CODING | {"le": "5.0"}) == 0
    assert registry.get_sample_value(bucket, CODING | {"le": "10.0"}) == 1
    assert {"0.001", "3600.0"} <= {
        sample.labels["le"] for family in registry.collect() for sample in family.samples if sample.name == bucket
    }


async def test_action_that_was_never_granted_has_no_run_time_and_no_overhead() -> None:
    actions, registry = metrics_of(Names({1: ("default", "coding")}))
    actions.record([Ended(outcome="deadline_in_queue", granted_at=None, run_us=None)])
    await actions.wait_until_counted()
    assert registry.get_sample_value("tangram_action_queueing_seconds_sum", CODING) == 5.5
    assert registry.get_sample_value("tangram_action_completion_seconds_count", CODING) == 1
    assert registry.get_sample_value("tangram_action_run_seconds_count", CODING) == 0
    assert registry.get_sample_value("tangram_action_overhead_seconds_count", CODING) == 0


async def test_outcome_and_reason_are_labels_and_requeued_attempts_are_not_counted() -> None:
    actions, registry = metrics_of(Names({1: ("default", "coding")}))
    failed = Ended(outcome="infra_error", reason="node_lost")
    requeued = Ended(outcome=None, reason="node_lost", settled_at=None, run_us=None)
    actions.record([Ended(), Ended(), failed, requeued])
    await actions.wait_until_counted()
    name = "tangram_actions_settled_total"
    assert registry.get_sample_value(name, CODING | {"outcome": "ok", "reason": ""}) == 2
    assert registry.get_sample_value(name, CODING | {"outcome": "infra_error", "reason": "node_lost"}) == 1
    assert registry.get_sample_value("tangram_action_completion_seconds_count", CODING) == 3


async def test_core_seconds_are_summed_by_task_and_kind() -> None:
    actions, registry = metrics_of(Names({1: ("default", "coding")}))
    times = [CoreTime(queue_id=1, kind="exec", allocated_s=8.0, used_s=used) for used in (2.0, 3.0)]
    actions.record([Ended(outcome=None)], times)
    await actions.wait_until_counted()
    assert registry.get_sample_value("tangram_allocated_core_seconds_total", CODING) == 16.0
    assert registry.get_sample_value("tangram_used_core_seconds_total", CODING) == 5.0


def tasks_by_project(registry: CollectorRegistry) -> dict[str, dict[str, float]]:
    """Return the settled actions by project and task."""
    found: dict[str, dict[str, float]] = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name.endswith("_settled_total"):
                found.setdefault(sample.labels["project"], {})[sample.labels["task"]] = sample.value
    return found


async def test_tasks_beyond_the_limits_are_counted_as_other() -> None:
    store = Names({number: ("p0", f"t{number}") for number in range(1000)} | {1000: ("p1", "task")})
    actions, registry = metrics_of(store)
    for number in store.names:
        actions.record([Ended(queue_id=number)])
    await actions.wait_until_counted()
    counted = tasks_by_project(registry)
    assert len(counted["p0"]) == MAX_TASKS_OF_PROJECT + 1
    assert counted["p0"]["other"] == 1000 - MAX_TASKS_OF_PROJECT
    assert counted["p1"] == {"task": 1}


async def test_projects_with_many_tasks_leave_labels_to_every_other_project() -> None:
    names = [(f"big{number % 4}", f"t{number}") for number in range(4 * MAX_TASKS_OF_PROJECT)]
    assert len(names) >= MAX_TASKS
    small = [f"small{number}" for number in range(MAX_PROJECTS - 4)]
    names += [(project, f"t{number}") for number in range(MIN_TASKS_OF_PROJECT + 1) for project in small]
    names += [("one too many", "task")]
    actions, registry = metrics_of(Names(dict(enumerate(names))))
    actions.record([Ended(queue_id=number) for number in range(len(names))])
    await actions.wait_until_counted()
    counted = tasks_by_project(registry)
    own = {f"t{number}": 1.0 for number in range(MIN_TASKS_OF_PROJECT)}
    assert {project: counted[project] for project in small} == dict.fromkeys(small, own | {"other": 1})
    assert counted["other"] == {"other": 1}


async def test_names_are_not_read_if_all_labels_are_used() -> None:
    names = [(f"p{number % MAX_PROJECTS}", f"t{number}") for number in range(MAX_PROJECTS * MIN_TASKS_OF_PROJECT)]
    store = Names(dict(enumerate([*names, ("p0", "late")])))
    actions, registry = metrics_of(store)
    actions.record([Ended(queue_id=number) for number in range(len(names))])
    await actions.wait_until_counted()
    reads = store.reads
    actions.record([Ended(queue_id=len(names))])
    await actions.wait_until_counted()
    assert store.reads == reads
    assert tasks_by_project(registry)["other"] == {"other": 1}


async def test_names_of_new_tasks_are_read_one_statement_at_a_time_without_delaying_known_tasks() -> None:
    store = Names({1: ("default", "coding"), 2: ("default", "new"), 3: ("default", "newer")})
    actions, registry = metrics_of(store)
    actions.record([Ended()])
    await actions.wait_until_counted()
    store.may_answer = asyncio.Event()
    actions.record([Ended(), Ended(queue_id=2)])
    await asyncio.sleep(0)
    actions.record([Ended(queue_id=3), Ended(queue_id=2)])
    assert tasks_by_project(registry) == {"default": {"coding": 2}}
    store.may_answer.set()
    await actions.wait_until_counted()
    assert tasks_by_project(registry) == {"default": {"coding": 2, "new": 2, "newer": 1}}
    assert store.max_running == 1


async def test_actions_beyond_the_buffer_are_counted_as_other() -> None:
    store = Names({1: ("default", "coding")}, may_answer=asyncio.Event())
    actions, registry = metrics_of(store)
    actions.record([Ended() for _ in range(MAX_WAITING + 2)])
    assert tasks_by_project(registry) == {"other": {"other": 2}}
    assert store.may_answer is not None
    store.may_answer.set()
    await actions.wait_until_counted()
    assert tasks_by_project(registry) == {"default": {"coding": MAX_WAITING}, "other": {"other": 2}}


async def test_overlapping_reads_of_a_task_use_one_label() -> None:
    store = Names({number: ("p", f"t{number}") for number in range(MAX_TASKS_OF_PROJECT)}, may_answer=asyncio.Event())
    labels = TaskLabels(cast("PostgresStore", store))
    first = dict.fromkeys(range(MAX_TASKS_OF_PROJECT - 1))
    loads = [asyncio.create_task(labels.load(first)) for _ in range(2)]
    while store.running < 2:
        await asyncio.sleep(0)
    assert store.may_answer is not None
    store.may_answer.set()
    await asyncio.gather(*loads)
    await labels.load({MAX_TASKS_OF_PROJECT - 1: None})
    assert [labels.get(number) for number in store.names] == list(store.names.values())


async def test_remembered_queues_are_limited_and_a_forgotten_one_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_metrics, "MAX_UNLABELLED_QUEUES", 10)
    store = Names({number: ("p", f"t{number}") for number in range(MAX_TASKS_OF_PROJECT + 11)})
    labels = TaskLabels(cast("PostgresStore", store))
    await labels.load(dict.fromkeys(store.names))
    assert [queue for queue in store.names if not labels.is_known(queue)] == [MAX_TASKS_OF_PROJECT]
    await labels.load({MAX_TASKS_OF_PROJECT: None})
    assert labels.get(MAX_TASKS_OF_PROJECT) == ("p", "other")


async def test_names_are_read_once_and_a_failed_read_loses_no_count() -> None:
    store = Names({1: ("default", "coding")}, down=True)
    actions, registry = metrics_of(store)
    actions.record([Ended()])
    await actions.wait_until_counted()
    store.down = False
    for _ in range(3):
        actions.record([Ended()])
        await actions.wait_until_counted()
    other = {"project": "other", "task": "other", "kind": "exec"}
    name = "tangram_action_completion_seconds_count"
    assert (registry.get_sample_value(name, other), registry.get_sample_value(name, CODING)) == (1, 3)
    assert store.reads == 2
