"""Action classes of queued actions and allocations, tracked separately up to a limit.

A round visits each class of the queue. If each action runs its own script or demands its own amount of memory, there
are as many classes as actions. One task could then slow down the rounds of all tasks.
"""

import json
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from arl_core.capacity.walltime import rounded_time_limit_s
from arl_core.domain.model import ActionClass, ClassVariant
from arl_scheduler.queries.poll_result import AllocationRow, to_action_class
from arl_wire.internal.scheduler import QueuedActionRow

__all__ = ["MAX_CLASSES_PER_TASK", "ActionClassTable"]

MAX_CLASSES_PER_TASK = 500
"""Separate classes of one task. Further actions of equal demand share a mixed class and its estimates."""
MIN_CLASSES_PER_TASK = 20
"""Separate classes of each task once `MAX_CLASSES` classes are tracked."""
MAX_CLASSES = 10_000


@dataclass(slots=True)
class _TrackedClass:
    cls: ActionClass
    task: int
    mixed_key: Hashable
    """None for a class that is tracked separately."""
    action_count: int = 0


class ActionClassTable:
    """A table of reference-counted classes. A class is forgotten with the last of its queued and granted actions."""

    def __init__(self) -> None:
        self._tracked: dict[ClassVariant, _TrackedClass] = {}
        """Classes by key and time limit; those of one key share estimates."""
        self._mixed: dict[Hashable, ActionClass] = {}
        """Mixed classes by the demand of their actions."""
        self._separate_count: Counter[int] = Counter()
        """Number of separate classes of each task. Time limits of one class count once."""
        self._variant_count: Counter[int] = Counter()
        """Number of tracked time limits by the key of a separate class."""

    def __len__(self) -> int:
        return len(self._tracked)

    def acquire(self, row: QueuedActionRow) -> ActionClass:
        """Return the class of one more queued action. The caller must release it."""
        known = self._tracked.get((row.class_key, rounded_time_limit_s(row.timeout_s)))
        if known is not None:
            known.action_count += 1
            return known.cls
        if row.class_key in self._variant_count or self._can_track(row.queue_id):
            return self._track_separately(to_action_class(row), task=row.queue_id)
        form = _mixed_key(row)
        cls = self._mixed.get(form)
        if cls is None:
            cls = self._mixed[form] = replace(to_action_class(row), key=_mixed_class_key(row), is_mixed=True)
            self._tracked[cls.variant] = _TrackedClass(cls, row.queue_id, form)
        self._tracked[cls.variant].action_count += 1
        return cls

    def acquire_granted(self, row: AllocationRow, *, queued_as: ActionClass | None) -> ActionClass | None:
        """Return the class of an action granted by another leader; `queued_as` is its class in the queue, if known.

        Return None if the class is unknown.
        """
        cls = queued_as or row.cls
        known = self._tracked.get(cls.variant) if cls is not None else self._any_variant(row.class_key)
        if known is not None:
            known.action_count += 1
            return known.cls
        return self._track_separately(row.cls, task=row.queue_id) if row.cls is not None else None

    def release(self, cls: ActionClass) -> None:
        """Release the class for one action that is neither queued nor allocated any more."""
        known = self._tracked[cls.variant]
        known.action_count -= 1
        if known.action_count:
            return
        del self._tracked[cls.variant]
        if known.mixed_key is not None:
            del self._mixed[known.mixed_key]
            return
        self._variant_count[cls.key] -= 1
        if self._variant_count[cls.key]:
            return
        del self._variant_count[cls.key]
        self._separate_count[known.task] -= 1
        if not self._separate_count[known.task]:
            del self._separate_count[known.task]

    def _any_variant(self, key: int) -> _TrackedClass | None:
        """Return a class with this key. Its time limit does not matter for an action that has been granted."""
        return next((known for known in self._tracked.values() if known.cls.key == key), None)

    def _track_separately(self, cls: ActionClass, *, task: int) -> ActionClass:
        self._tracked[cls.variant] = _TrackedClass(cls, task, mixed_key=None, action_count=1)
        self._variant_count[cls.key] += 1
        self._separate_count[task] += self._variant_count[cls.key] == 1
        return cls

    def _can_track(self, task: int) -> bool:
        most = MAX_CLASSES_PER_TASK if len(self._tracked) < MAX_CLASSES else MIN_CLASSES_PER_TASK
        return self._separate_count[task] < most


def _demand_parts(row: QueuedActionRow) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the parts that decide where an action may start, without its program and its elasticity."""
    elastic = {name: value for name, value in (row.elastic or {}).items() if name != "elasticity"}
    home = {name: row.environment.get(name) for name in ("scope", "template", "node", "require")}
    return row.demand, elastic | (row.cpu_sharing or {}), home


def _mixed_key(row: QueuedActionRow) -> Hashable:
    demand, elastic, home = _demand_parts(row)
    home["require"] = tuple(home["require"] or ())
    parts = (frozenset(each.items()) for each in (demand, elastic, home))
    return (row.queue_id, row.kind, row.shape, rounded_time_limit_s(row.timeout_s), *parts)


def _mixed_class_key(row: QueuedActionRow) -> int:
    """Return a key of signed 64 bits, like admission's. It is equal for every leader."""
    parts = ["mixed", row.queue_id, row.kind, row.shape, *_demand_parts(row)]
    return int.from_bytes(blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).digest(), signed=True)
