"""Quotas: how many actions of a task may run concurrently on all nodes, as set by an administrator."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from arl_core.domain.model import QueuedAction, Resources

__all__ = ["QuotaRoom", "QuotaUsage", "TaskQuota"]

ALL_ACTIONS = ""
"""Name under which all actions of a task are counted, next to the names of resources."""


@dataclass(frozen=True, slots=True)
class TaskQuota:
    """The maximum number of granted and running actions of a task."""

    actions: int | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    """Maximum number of actions per resource, for example a slot of a reward service or a call of an endpoint."""

    @property
    def limits(self) -> dict[str, int]:
        """Return the limits by resource; the limit of all actions has the key `ALL_ACTIONS`."""
        return {**self.resources, **({} if self.actions is None else {ALL_ACTIONS: self.actions})}


class QuotaUsage:
    """The usage of tasks with a quota. Other tasks are not counted."""

    def __init__(self) -> None:
        self._quotas: Mapping[int, TaskQuota] = {}
        self._usage: dict[int, dict[str, int]] = {}

    def __contains__(self, task: int) -> bool:
        return task in self._usage

    def set_quotas(self, quotas: Mapping[int, TaskQuota], allocated: Iterable[tuple[int, Resources]]) -> None:
        """Set the quotas; `allocated` has the task and the allocation of each granted or running action."""
        if quotas == self._quotas:
            return
        self._quotas = quotas
        self._usage = {task: dict.fromkeys(quota.limits, 0) for task, quota in quotas.items()}
        for task, amounts in allocated:
            self.add_usage(task, amounts)

    def add_usage(self, task: int, resources: Resources) -> None:
        """Count an action that was granted; tasks without a quota are ignored."""
        if (held := self._usage.get(task)) is not None:
            _add_counts(held, resources, +1)

    def remove_usage(self, task: int, resources: Resources) -> None:
        """Stop counting an action that has ended or was re-queued."""
        if (held := self._usage.get(task)) is not None:
            _add_counts(held, resources, -1)

    def room(self) -> "QuotaRoom | None":
        """Return the room of one round; None if no task has a quota."""
        if not self._usage:
            return None
        limits = {task: quota.limits for task, quota in self._quotas.items()}
        left = {
            task: {name: most - self._usage[task][name] for name, most in each.items()} for task, each in limits.items()
        }
        return QuotaRoom(limits, left)


class QuotaRoom:
    """The room that quotas leave in a round; it shrinks as actions start."""

    def __init__(self, limits: Mapping[int, Mapping[str, int]], remaining: dict[int, dict[str, int]]) -> None:
        """Take limits and remaining room by task; negative if a quota was lowered, as running actions continue."""
        self._limits, self._remaining = limits, remaining
        self._blocked_tasks: set[int] = set()
        """Tasks blocked by a gang at their head that would fit if nothing else of the task were running."""

    def has_room(self, action: QueuedAction) -> bool:
        """Return True if the action and its gang may start.

        Actions behind a gang that waits for room may not use the room that the gang needs.
        """
        left = self._remaining.get(action.task)
        if left is None:
            return True
        if action.task in self._blocked_tasks:
            return False
        wanted = dict.fromkeys(left, 0)
        for each in (action, *action.gang_members):
            _add_counts(wanted, each.cls.demand.minimum, +1)
        if _is_within(wanted, left):
            return True
        if action.gang_members and _is_within(wanted, self._limits[action.task]):
            self._blocked_tasks.add(action.task)
        return False

    def consume(self, action: QueuedAction) -> None:
        """Consume the room of an action and its gang."""
        if action.task in self._remaining:
            for each in (action, *action.gang_members):
                self.consume_resources(each.task, each.cls.demand.minimum)

    def consume_resources(self, task: int, resources: Resources) -> None:
        """Consume the room of one action."""
        if (left := self._remaining.get(task)) is not None:
            _add_counts(left, resources, -1)

    def consume_up_to(self, action: QueuedAction, count: int) -> int:
        """Consume the room of up to `count` equivalent actions; return how many may start."""
        left, minimum = self._remaining.get(action.task, {}), action.cls.demand.minimum
        taken = max(0, min((number for name, number in left.items() if _is_counted(name, minimum)), default=count))
        taken = min(taken, count)
        _add_counts(left, minimum, -taken)
        return taken


def _is_within(needed: Mapping[str, int], remaining: Mapping[str, int]) -> bool:
    return all(number <= remaining[name] for name, number in needed.items() if number)


def _add_counts(counts: dict[str, int], resources: Resources, by: int) -> None:
    for name in counts:
        if _is_counted(name, resources):
            counts[name] += by


def _is_counted(name: str, resources: Resources) -> bool:
    return name == ALL_ACTIONS or bool(resources.get(name))
