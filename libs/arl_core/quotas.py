"""How many actions of a task may run at once, whatever is free: what its administrator allows, over all nodes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from arl_core.model import Amounts, Grant

__all__ = ["Left", "Quota", "Quotas", "allowed"]

ALL = ""
"""The name under which all actions of a task count, beside the names of resources."""

Left = Mapping[str, int]
"""How many more may start: in all, and of those that hold some of a resource."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Actions that are granted or running at once, at most."""

    actions: int | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    """Of those that hold some of it; a slot of a reward service, for instance."""

    @property
    def limits(self) -> dict[str, int]:
        return {**self.resources, **({} if self.actions is None else {ALL: self.actions})}


class Quotas:
    """What the tasks that have a quota may still start. Others are not counted, and cost nothing."""

    def __init__(self) -> None:
        self._quotas: Mapping[int, Quota] = {}
        self.left: dict[int, dict[str, int]] = {}
        """By task. Below 0 where a quota was lowered: what runs goes on."""

    def set(self, quotas: Mapping[int, Quota], held: Iterable[tuple[int, Amounts]]) -> None:
        """`held`: the task of each action that holds something, and what that is."""
        if quotas == self._quotas:
            return
        self._quotas = quotas
        self.left.clear()
        self.left.update((task, quota.limits) for task, quota in quotas.items())
        for task, amounts in held:
            self.took(task, amounts)

    def took(self, task: int, amounts: Amounts) -> None:
        if (left := self.left.get(task)) is not None:
            _count(left, amounts, -1)

    def gave_back(self, task: int, amounts: Amounts) -> None:
        if (left := self.left.get(task)) is not None:
            _count(left, amounts, +1)

    def within(self, grants: tuple[Grant, ...], task_of: Callable[[UUID], int]) -> tuple[Grant, ...]:
        """Without what would be beyond a quota; a gang is whole or not there. A round does not count as it grants."""
        if not self.left:
            return grants
        left = {task: each.copy() for task, each in self.left.items()}
        found: list[Grant] = []
        for _, each in groupby(grants, key=lambda grant: grant.gang or grant.fence):
            together = list(each)
            asked = [(task_of(grant.fence.action_id), grant.amounts) for grant in together]
            if allowed(left, asked):
                found += together
                for task, amounts in asked:
                    _count(left.get(task, {}), amounts, -1)
        return tuple(found)


def allowed(left: Mapping[int, Left], actions: Iterable[tuple[int, Amounts]]) -> bool:
    """Whether all of these may start, each of a task and with what it takes."""
    wanted: dict[int, dict[str, int]] = {}
    for task, amounts in actions:
        if (own := left.get(task)) is not None:
            _count(wanted.setdefault(task, dict.fromkeys(own, 0)), amounts, +1)
    return all(
        number <= left[task][name] for task, each in wanted.items() for name, number in each.items() if number > 0
    )


def _count(counts: dict[str, int], amounts: Amounts, by: int) -> None:
    for name in counts:
        if name == ALL or amounts.get(name):
            counts[name] += by
