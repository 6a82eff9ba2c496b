"""Limits on the classes of queued actions: separate classes per task, then one class per equal demand."""

from typing import Any, cast

import pytest

from arl_core.domain.model import ActionClass, Grant
from arl_core.policies.policy import FirstComeFirstServed
from arl_scheduler.index.action_classes import MAX_CLASSES, MAX_CLASSES_PER_TASK, MIN_CLASSES_PER_TASK, ActionClassTable
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.duration_learner import MIN_RUNS_TO_REJECT, DurationLearner
from arl_store.tx import PostgresStore
from arl_wire.internal.scheduler import QueuedActionRow
from support.builders import a_held_action, a_poll, a_queued_row

NOW = 1000.0


def of_own_class(number: int, **changed: Any) -> QueuedActionRow:
    """Return a queued action with its own class, as if it runs its own script."""
    return a_queued_row(number, class_key=number, **changed)


def elastic(fraction: float, most: int = 4000) -> dict[str, Any]:
    declared = {"model": "amdahl", "parallel_fraction": fraction}
    return {"resource": "cpu_milli", "min": 1000, "max": most, "step": 1000, "elasticity": declared}


def a_full_task(
    classes: ActionClassTable, count: int = MAX_CLASSES_PER_TASK, *, first: int = 1, task: int = 1
) -> list[ActionClass]:
    return [classes.acquire(of_own_class(number, queue_id=task)) for number in range(first, first + count)]


class TestClassLimits:
    def test_actions_beyond_task_limit_share_a_mixed_class(self) -> None:
        classes = ActionClassTable()
        own = a_full_task(classes)
        others = [classes.acquire(of_own_class(number)) for number in range(2000, 2100)]
        assert len({cls.key for cls in own}) == MAX_CLASSES_PER_TASK
        assert {(cls.key, cls.is_mixed) for cls in others} == {(others[0].key, True)}
        assert len(classes) == MAX_CLASSES_PER_TASK + 1

    def test_round_has_few_buckets_despite_many_classes(self) -> None:
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=[of_own_class(number) for number in range(2000)]))
        assert sum(1 for _ in index.candidates.queue.buckets()) == MAX_CLASSES_PER_TASK + 1
        assert index.queued_count == 2000

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ({"demand": {"cpu_milli": 1000}}, {"demand": {"cpu_milli": 2000}}, False),
            ({"demand": {"memory_mib": 100}}, {"demand": {"memory_mib": 101}}, False),
            ({"kind": "exec"}, {"kind": "score"}, False),
            ({"elastic": elastic(0.5)}, {"elastic": elastic(0.5, most=8000)}, False),
            ({"elastic": elastic(0.5)}, {"elastic": elastic(0.51)}, True),
            ({"environment": {"scope": "ephemeral", "template": "a"}}, {"environment": {"scope": "ephemeral"}}, False),
            ({"environment": {"scope": "ephemeral", "require": ["pids"]}}, {}, False),
            ({"trajectory": "a"}, {"trajectory": "b"}, True),
        ],
    )
    def test_mixed_class_contains_only_equal_demands_and_requirements(
        self, one: dict[str, Any], other: dict[str, Any], same: bool
    ) -> None:
        classes = ActionClassTable()
        a_full_task(classes)
        first, second = (classes.acquire(of_own_class(2000 + at, **each)) for at, each in enumerate((one, other)))
        assert (first.key == second.key) is same

    def test_separate_classes_stay_separate_and_do_not_limit_other_tasks(self) -> None:
        classes = ActionClassTable()
        own = a_full_task(classes)
        classes.acquire(of_own_class(2000))
        assert classes.acquire(of_own_class(1)) is own[0]
        assert not classes.acquire(of_own_class(3000, queue_id=2)).is_mixed

    def test_task_gets_minimum_number_of_classes_at_global_limit(self) -> None:
        classes = ActionClassTable()
        for task in range(MAX_CLASSES // MAX_CLASSES_PER_TASK):
            a_full_task(classes, first=task * MAX_CLASSES_PER_TASK, task=task)
        own = a_full_task(classes, MIN_CLASSES_PER_TASK + 1, first=10**6, task=99)
        assert [cls.is_mixed for cls in own] == [False] * MIN_CLASSES_PER_TASK + [True]

    def test_mixed_class_key_is_equal_for_every_leader(self) -> None:
        found = []
        for first in (5000, 6000):
            classes = ActionClassTable()
            a_full_task(classes, first=first)
            found.append(
                classes.acquire(of_own_class(first + MAX_CLASSES_PER_TASK, elastic=elastic(first / 10_000))).key
            )
        assert found[0] == found[1]


class TestClassRelease:
    def test_class_is_released_with_its_last_action(self) -> None:
        classes = ActionClassTable()
        a_full_task(classes)
        mixed = [classes.acquire(of_own_class(number)) for number in (2000, 2001)]
        for cls in mixed:
            assert len(classes) == MAX_CLASSES_PER_TASK + 1
            classes.release(cls)
        assert len(classes) == MAX_CLASSES_PER_TASK
        classes.release(classes.acquire(of_own_class(1)))
        assert len(classes) == MAX_CLASSES_PER_TASK

    def test_index_keeps_only_classes_of_queued_or_allocated_actions(self) -> None:
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=[of_own_class(number) for number in (1, 2, 3)]))
        grants = granted(index)
        assert (len(grants), len(index._action_classes)) == (2, 3)
        index.release_attempts(grant.fence for grant in grants)
        assert len(index._action_classes) == 1
        index.drop_refused([a_queued_row(3).id])
        assert len(index._action_classes) == 0

    def test_action_granted_by_another_leader_keeps_its_class(self) -> None:
        index, held = SchedulerIndex(), SchedulerIndex()
        index.reconcile(a_poll(queued=[of_own_class(1)]))
        held.reconcile(a_poll(queued=[of_own_class(1)]))
        (grant,) = granted(held)
        index.reconcile(a_poll(held=[a_held_action(grant.fence, class_key=1)]))
        (hold,) = index.allocations
        assert hold.cls is not None
        assert hold.cls.key == 1
        assert len(index._action_classes) == 1
        index.release_attempts([grant.fence])
        assert len(index._action_classes) == 0


def test_mixed_class_never_rejects_actions_by_learnt_run_time() -> None:
    learning, classes = DurationLearner(cast(PostgresStore, None)), ActionClassTable()
    a_full_task(classes)
    for cls, said in ((classes.acquire(of_own_class(1)), True), (classes.acquire(of_own_class(2000)), False)):
        for _ in range(MIN_RUNS_TO_REJECT):
            learning.estimates.observe(cls, amount=1000, run_s=60.0)
        learning._seen_at[cls.key] = float("inf")
        assert (learning.min_run_time_s(cls) > 0) is said


def granted(index: SchedulerIndex) -> tuple[Grant, ...]:
    """Return the grants of one round after Postgres confirms all of them."""
    grants = FirstComeFirstServed().plan(index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)).grants
    index.apply_grants(grants, now=NOW)
    return grants
