"""Number of classes of the queued actions: separate classes of a task, and one class for equal demands."""

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
    """As where each action runs a script of its own."""
    return a_queued_row(number, class_key=number, **changed)


def elastic(fraction: float, most: int = 4000) -> dict[str, Any]:
    declared = {"model": "amdahl", "parallel_fraction": fraction}
    return {"resource": "cpu_milli", "min": 1000, "max": most, "step": 1000, "elasticity": declared}


def a_full_task(
    classes: ActionClassTable, count: int = MAX_CLASSES_PER_TASK, *, first: int = 1, task: int = 1
) -> list[ActionClass]:
    return [classes.acquire(of_own_class(number, queue_id=task)) for number in range(first, first + count)]


class TestApart:
    def test_beyond_so_many_of_a_task_what_asks_for_the_same_is_of_one_class(self) -> None:
        classes = ActionClassTable()
        own = a_full_task(classes)
        others = [classes.acquire(of_own_class(number)) for number in range(2000, 2100)]
        assert len({cls.key for cls in own}) == MAX_CLASSES_PER_TASK
        assert {(cls.key, cls.is_mixed) for cls in others} == {(others[0].key, True)}
        assert len(classes) == MAX_CLASSES_PER_TASK + 1

    def test_a_round_has_few_buckets_to_look_at_where_each_action_is_of_a_class_of_its_own(self) -> None:
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
    def test_only_what_may_start_on_the_same_nodes_with_the_same_amounts_is_mixed(
        self, one: dict[str, Any], other: dict[str, Any], same: bool
    ) -> None:
        classes = ActionClassTable()
        a_full_task(classes)
        first, second = (classes.acquire(of_own_class(2000 + at, **each)) for at, each in enumerate((one, other)))
        assert (first.key == second.key) is same

    def test_what_is_told_apart_stays_so_and_leaves_other_tasks_their_classes(self) -> None:
        classes = ActionClassTable()
        own = a_full_task(classes)
        classes.acquire(of_own_class(2000))
        assert classes.acquire(of_own_class(1)) is own[0]
        assert not classes.acquire(of_own_class(3000, queue_id=2)).is_mixed

    def test_of_very_many_in_all_each_task_has_a_few(self) -> None:
        classes = ActionClassTable()
        for task in range(MAX_CLASSES // MAX_CLASSES_PER_TASK):
            a_full_task(classes, first=task * MAX_CLASSES_PER_TASK, task=task)
        own = a_full_task(classes, MIN_CLASSES_PER_TASK + 1, first=10**6, task=99)
        assert [cls.is_mixed for cls in own] == [False] * MIN_CLASSES_PER_TASK + [True]

    def test_the_mixed_class_is_the_same_for_each_leader(self) -> None:
        found = []
        for first in (5000, 6000):
            classes = ActionClassTable()
            a_full_task(classes, first=first)
            found.append(
                classes.acquire(of_own_class(first + MAX_CLASSES_PER_TASK, elastic=elastic(first / 10_000))).key
            )
        assert found[0] == found[1]


class TestForgotten:
    def test_with_the_last_of_its_actions(self) -> None:
        classes = ActionClassTable()
        a_full_task(classes)
        mixed = [classes.acquire(of_own_class(number)) for number in (2000, 2001)]
        for cls in mixed:
            assert len(classes) == MAX_CLASSES_PER_TASK + 1
            classes.release(cls)
        assert len(classes) == MAX_CLASSES_PER_TASK
        classes.release(classes.acquire(of_own_class(1)))
        assert len(classes) == MAX_CLASSES_PER_TASK

    def test_an_index_knows_those_of_what_waits_or_is_held(self) -> None:
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=[of_own_class(number) for number in (1, 2, 3)]))
        grants = granted(index)
        assert (len(grants), len(index._action_classes)) == (2, 3)
        index.release_attempts(grant.fence for grant in grants)
        assert len(index._action_classes) == 1
        index.drop_refused([a_queued_row(3).id])
        assert len(index._action_classes) == 0

    def test_what_another_leader_granted_keeps_the_class_that_it_waited_with(self) -> None:
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


def test_nobody_is_refused_for_what_other_programs_took() -> None:
    learning, classes = DurationLearner(cast(PostgresStore, None)), ActionClassTable()
    a_full_task(classes)
    for cls, said in ((classes.acquire(of_own_class(1)), True), (classes.acquire(of_own_class(2000)), False)):
        for _ in range(MIN_RUNS_TO_REJECT):
            learning.estimates.observe(cls, amount=1000, run_s=60.0)
        learning._seen_at[cls.key] = float("inf")
        assert (learning.min_run_time_s(cls) > 0) is said


def granted(index: SchedulerIndex) -> tuple[Grant, ...]:
    """Grants of one round, all of them confirmed by Postgres."""
    grants = FirstComeFirstServed().plan(index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)).grants
    index.apply_grants(grants, now=NOW)
    return grants
