"""How many actions of a task may run at once, whatever is free: what its administrator allows, over all nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from arl_core.model import Amounts, Waiting

__all__ = ["Quota", "Quotas", "Room"]

ALL = ""
"""The name under which all actions of a task count, beside the names of resources."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Actions that are granted or running at once, at most."""

    actions: int | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    """Of those that hold some of it; a slot of a reward service, for instance, or a call of an endpoint."""

    @property
    def limits(self) -> dict[str, int]:
        return {**self.resources, **({} if self.actions is None else {ALL: self.actions})}


class Quotas:
    """What the tasks that have a quota hold. Others are not counted."""

    def __init__(self) -> None:
        self._quotas: Mapping[int, Quota] = {}
        self._held: dict[int, dict[str, int]] = {}

    def __contains__(self, task: int) -> bool:
        return task in self._held

    def set(self, quotas: Mapping[int, Quota], held: Iterable[tuple[int, Amounts]]) -> None:
        """`held`: the task of each action that holds something, and what that is."""
        if quotas == self._quotas:
            return
        self._quotas = quotas
        self._held = {task: dict.fromkeys(quota.limits, 0) for task, quota in quotas.items()}
        for task, amounts in held:
            self.took(task, amounts)

    def took(self, task: int, amounts: Amounts) -> None:
        if (held := self._held.get(task)) is not None:
            _count(held, amounts, +1)

    def gave_back(self, task: int, amounts: Amounts) -> None:
        if (held := self._held.get(task)) is not None:
            _count(held, amounts, -1)

    def room(self) -> "Room | None":
        """For one round; None where no task has a quota."""
        if not self._held:
            return None
        limits = {task: quota.limits for task, quota in self._quotas.items()}
        left = {
            task: {name: most - self._held[task][name] for name, most in each.items()} for task, each in limits.items()
        }
        return Room(limits, left)


class Room:
    """What quotas leave in a round, less and less as it starts actions."""

    def __init__(self, limits: Mapping[int, Mapping[str, int]], left: dict[int, dict[str, int]]) -> None:
        """Both by task. `left` is below 0 where a quota was lowered: what runs goes on."""
        self._limits, self._left = limits, left
        self._kept: set[int] = set()
        """Tasks of which a gang is first that would fit, were nothing else of it started."""

    def has(self, action: Waiting) -> bool:
        """Whether it may start, and all that start with it. What comes after a gang may not eat up what that needs."""
        left = self._left.get(action.task)
        if left is None:
            return True
        if action.task in self._kept:
            return False
        wanted = dict.fromkeys(left, 0)
        for each in (action, *action.together):
            _count(wanted, each.cls.demand.minimum, +1)
        if _within(wanted, left):
            return True
        if action.together and _within(wanted, self._limits[action.task]):
            self._kept.add(action.task)
        return False

    def take(self, action: Waiting) -> None:
        """It starts, with all that start with it."""
        if action.task in self._left:
            for each in (action, *action.together):
                self.count(each.task, each.cls.demand.minimum)

    def count(self, task: int, amounts: Amounts) -> None:
        """One starts."""
        if (left := self._left.get(task)) is not None:
            _count(left, amounts, -1)

    def take_some(self, action: Waiting, count: int) -> int:
        """As many of so many alike as may start, which do."""
        left, minimum = self._left.get(action.task, {}), action.cls.demand.minimum
        taken = max(0, min((number for name, number in left.items() if _counts(name, minimum)), default=count))
        taken = min(taken, count)
        _count(left, minimum, -taken)
        return taken


def _within(wanted: Mapping[str, int], left: Mapping[str, int]) -> bool:
    return all(number <= left[name] for name, number in wanted.items() if number)


def _count(counts: dict[str, int], amounts: Amounts, by: int) -> None:
    for name in counts:
        if _counts(name, amounts):
            counts[name] += by


def _counts(name: str, amounts: Amounts) -> bool:
    return name == ALL or bool(amounts.get(name))
