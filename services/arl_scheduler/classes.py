"""The classes of what waits and of what is held, told apart as far as a round can afford it.

A round looks at each class that waits. Where each action runs a script of its own, or asks for memory of its own,
there would be as many as there are actions; one task would make every round slow, for all tasks.
"""

import json
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from arl_core.model import ActionClass
from arl_scheduler.rows import Held, class_of
from arl_wire.internal import QueuedAction

__all__ = ["OF_A_TASK", "Classes"]

OF_A_TASK = 500
"""Classes of one task that are told apart at once. Others wait and are learnt from with whatever asks for the same."""
AFTER_ALL = 20
"""So many of each task, once `IN_ALL` are told apart."""
IN_ALL = 10_000


@dataclass(slots=True)
class _Known:
    cls: ActionClass
    task: int
    form: Hashable
    """None of one that is told apart."""
    actions: int = 0


class Classes:
    """Each is forgotten with the last of its actions that waits or is held."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._mixed: dict[Hashable, ActionClass] = {}
        """By what its actions ask for."""
        self._apart: Counter[int] = Counter()
        """How many of each task are told apart."""

    def __len__(self) -> int:
        return len(self._known)

    def take(self, row: QueuedAction) -> ActionClass:
        """That of one more action; who takes it gives it back."""
        known = self._known.get(row.class_key)
        if known is not None:
            known.actions += 1
            return known.cls
        if self._has_place(row.queue_id):
            return self._take_apart(class_of(row), task=row.queue_id)
        form = _form(row)
        cls = self._mixed.get(form)
        if cls is None:
            cls = self._mixed[form] = replace(class_of(row), key=_key(row), mixed=True)
            self._known[cls.key] = _Known(cls, row.queue_id, form)
        self._known[cls.key].actions += 1
        return cls

    def take_held(self, row: Held, *, known_as: ActionClass | None) -> ActionClass | None:
        """The same of one that another leader granted, which this one knew in the queue as `known_as`, if at all.

        None where nobody knows it.
        """
        known = self._known.get(known_as.key if known_as is not None else row.class_key)
        if known is not None:
            known.actions += 1
            return known.cls
        return self._take_apart(row.cls, task=row.queue_id) if row.cls is not None else None

    def give_back(self, cls: ActionClass) -> None:
        """One of its actions neither waits nor is held any more."""
        known = self._known[cls.key]
        known.actions -= 1
        if known.actions:
            return
        del self._known[cls.key]
        if known.form is not None:
            del self._mixed[known.form]
            return
        self._apart[known.task] -= 1
        if not self._apart[known.task]:
            del self._apart[known.task]

    def _take_apart(self, cls: ActionClass, *, task: int) -> ActionClass:
        self._known[cls.key] = _Known(cls, task, form=None, actions=1)
        self._apart[task] += 1
        return cls

    def _has_place(self, task: int) -> bool:
        most = OF_A_TASK if len(self._known) < IN_ALL else AFTER_ALL
        return self._apart[task] < most


def _asked(row: QueuedAction) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What decides where it may start and with what: not its program, nor how it gains from more."""
    elastic = {name: value for name, value in (row.elastic or {}).items() if name != "elasticity"}
    home = {name: row.environment.get(name) for name in ("scope", "template", "node", "require")}
    return row.demand, elastic, home


def _form(row: QueuedAction) -> Hashable:
    demand, elastic, home = _asked(row)
    home["require"] = tuple(home["require"] or ())
    parts = (frozenset(each.items()) for each in (demand, elastic, home))
    return (row.queue_id, row.kind, row.shape, *parts)


def _key(row: QueuedAction) -> int:
    """Signed 64 bits, as admission makes them, and the same for whoever leads."""
    parts = ["mixed", row.queue_id, row.kind, row.shape, *_asked(row)]
    return int.from_bytes(blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).digest(), signed=True)
