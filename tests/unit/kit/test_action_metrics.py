"""Test the metrics of settled actions: exact counts and sums, and a limited number of task labels."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from arl_kit.action_metrics import MAX_TASKS, MAX_TASKS_OF_PROJECT, ActionMetrics, CoreTime, TaskLabels
from arl_kit.metrics import Metrics
from arl_store.tx import PostgresStore

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CODING = {"project": "default", "task": "coding", "kind": "exec"}


@dataclass
class Names:
    """The names of queues; a store that is `down` answers no statement."""

    names: Mapping[int, tuple[str, str]]
    down: bool = False
    reads: int = 0

    async def fetch(self, _: object, parameters: Mapping[str, Any]) -> Sequence[Any]:
        self.reads += 1
        if self.down:
            raise ConnectionError("the database is away")
        return [SimpleNamespace(id=id, project=self.names[id][0], task=self.names[id][1]) for id in parameters["ids"]]

    @asynccontextmanager
    async def read(self) -> AsyncIterator["Names"]:
        yield self


@dataclass(kw_only=True)
class Ended:
    """A settled row: granted 2 s after its creation, run for 3 s, settled 0.5 s later."""

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
    await actions.record([Ended()])
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
    await actions.record([Ended(outcome="deadline_in_queue", granted_at=None, run_us=None)])
    assert registry.get_sample_value("tangram_action_queueing_seconds_sum", CODING) == 5.5
    assert registry.get_sample_value("tangram_action_completion_seconds_count", CODING) == 1
    assert registry.get_sample_value("tangram_action_run_seconds_count", CODING) == 0
    assert registry.get_sample_value("tangram_action_overhead_seconds_count", CODING) == 0


async def test_outcome_and_reason_are_labels_and_requeued_attempts_are_not_counted() -> None:
    actions, registry = metrics_of(Names({1: ("default", "coding")}))
    failed = Ended(outcome="infra_error", reason="node_lost")
    requeued = Ended(outcome=None, reason="node_lost", settled_at=None, run_us=None)
    await actions.record([Ended(), Ended(), failed, requeued])
    name = "tangram_actions_settled_total"
    assert registry.get_sample_value(name, CODING | {"outcome": "ok", "reason": ""}) == 2
    assert registry.get_sample_value(name, CODING | {"outcome": "infra_error", "reason": "node_lost"}) == 1
    assert registry.get_sample_value("tangram_action_completion_seconds_count", CODING) == 3


async def test_core_seconds_are_summed_by_task_and_kind() -> None:
    actions, registry = metrics_of(Names({1: ("default", "coding")}))
    times = [CoreTime(queue_id=1, kind="exec", allocated_s=8.0, used_s=used) for used in (2.0, 3.0)]
    await actions.record([], times)
    assert registry.get_sample_value("tangram_allocated_core_seconds_total", CODING) == 16.0
    assert registry.get_sample_value("tangram_used_core_seconds_total", CODING) == 5.0


async def test_tasks_beyond_the_limits_are_counted_as_other() -> None:
    many = {number: (f"p{number // 1000}", f"t{number}") for number in (*range(1000), *range(1000, 1010))}
    store = Names(many | {9000 + number: (f"q{number}", "task") for number in range(MAX_TASKS)})
    actions, registry = metrics_of(store)
    for number in store.names:
        await actions.record([Ended(queue_id=number)])
    counted = [
        sample for family in registry.collect() for sample in family.samples if sample.name.endswith("_settled_total")
    ]
    by_project = {
        project: [sample for sample in counted if sample.labels["project"] == project] for project in ("p0", "p1")
    }
    assert len(by_project["p0"]) == MAX_TASKS_OF_PROJECT + 1
    assert {sample.labels["task"]: sample.value for sample in by_project["p0"]}["other"] == 1000 - MAX_TASKS_OF_PROJECT
    assert [sample.value for sample in by_project["p1"]] == [1] * 10, "another project keeps its labels"
    assert len([sample for sample in counted if sample.labels["task"] != "other"]) == MAX_TASKS
    assert sum(sample.value for sample in counted) == len(store.names)


async def test_names_are_read_once_and_a_failed_read_loses_no_count() -> None:
    store = Names({1: ("default", "coding")}, down=True)
    actions, registry = metrics_of(store)
    await actions.record([Ended()])
    store.down = False
    for _ in range(3):
        await actions.record([Ended()])
    other = {"project": "other", "task": "other", "kind": "exec"}
    name = "tangram_action_completion_seconds_count"
    assert (registry.get_sample_value(name, other), registry.get_sample_value(name, CODING)) == (1, 3)
    assert store.reads == 2
