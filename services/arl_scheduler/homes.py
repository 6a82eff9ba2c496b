"""What the index remembers of an environment and of a grant."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from arl_core.fence import Fence
from arl_core.model import ActionClass, Amounts, Environment, Pod, Running, TrajectoryName, Waiting

__all__ = ["Hold", "Home", "Homes", "HomesByNode", "Name", "Standing"]

Name = TrajectoryName


@dataclass(slots=True)
class Home:
    """A persistent environment, from the first action that wants it until its end."""

    name: Name
    id: UUID
    node: int | None = None
    counted: int | None = None
    """The node among whose homes it is counted."""
    began: float = float("inf")
    """When the first action of its trajectory that is known was submitted."""
    known: bool = False
    """A poll has read its row."""
    assumed: bool = False
    """An action was granted in it, so there may be a row that no poll has read yet."""
    gone: bool = False
    deleted: bool = False
    busy: UUID | None = None
    """Its granted or running action; at first one at a time."""
    returning: bool = False
    """An action of it went back to the queue: until a poll has read that, nobody may overtake it."""
    line: list[UUID] = field(default_factory=list)
    """Queued actions in order of id. Only the first is a candidate, and only while nothing is busy."""
    offered: tuple[UUID, UUID, int | None] | None = None
    """The candidate, with the environment and node it was offered for."""

    def seat(self, action: Waiting) -> Waiting:
        """The action in this environment, where that is by now."""
        known = action.environment
        if known is not None and known.id == self.id and known.node == self.node:
            return action
        return action._replace(environment=Environment(self.id, self.node))


@dataclass(frozen=True, slots=True)
class Standing:
    """A queued action and what keeps it from being a candidate."""

    action: Waiting
    """With its environment, if it has one."""
    paused: bool
    is_next: bool
    """Its environment is free, and its turn; always so of one without."""
    before: int
    """Actions that its environment runs or that come first in it."""

    @classmethod
    def of(cls, action: Waiting, home: Home | None, *, paused: bool) -> "Standing":
        if home is None:
            return cls(action, paused, is_next=True, before=0)
        is_next = home.offered is not None and home.offered[0] == action.id
        before = home.line.index(action.id) + int(home.busy is not None)
        return cls(home.seat(action), paused, is_next, before)


class Homes(dict[Name, Home]):
    """All environments that somebody waits for, holds or has left behind."""

    def __init__(self) -> None:
        super().__init__()
        self._tombstones: set[Name] = set()
        """Those that are gone and whose names are taken still."""
        self._awaited: set[Name] = set()
        """Those of them that actions wait for: they may be few of many."""

    def bury(self, home: Home, *, stays: bool) -> None:
        """Whether it `stays` as a tombstone."""
        (self._tombstones.add if stays else self._tombstones.discard)(home.name)

    def line_changed(self, home: Home) -> None:
        """Others wait for it than before, or nobody."""
        is_awaited = bool(home.line) and home.name in self._tombstones
        (self._awaited.add if is_awaited else self._awaited.discard)(home.name)

    def environment(self, name: Name | None) -> UUID | None:
        home = self.get(name) if name is not None else None
        return home.id if home is not None else None

    def is_live(self, environment: UUID | None, name: Name | None) -> bool:
        """False only for an environment that is known to be gone."""
        home = self.get(name) if name is not None else None
        return not (home is not None and home.id == environment and home.gone)

    def is_made(self, environment: UUID | None, name: Name | None) -> bool:
        """Whether the environment has a row, as far as polls have seen."""
        home = self.get(name) if name is not None else None
        return home is not None and home.known and home.id == environment

    def live_on(self, node: int) -> bool:
        """Whether any does."""
        return any(home.node == node and home.known and not home.gone for home in self.values())

    def pods(self, lent: Mapping[Name, int]) -> dict[Name, Pod]:
        """Of those that live; `lent` counts the actions outside of each that use its cores."""
        return {
            name: Pod(home.node, busy=home.busy is not None or lent.get(name, 0) > 0)
            for name, home in self.items()
            if home.node is not None and not home.gone
        }

    def stranded(self) -> list[UUID]:
        """Queued actions whose environment is a tombstone: they would run in another, empty one."""
        waited_for = [self[name] for name in sorted(self._awaited)]
        return [action_id for home in waited_for if home.busy is None for action_id in home.line]


class HomesByNode:
    """How many each node has."""

    def __init__(self) -> None:
        self._living: Counter[int] = Counter()
        self._changed: set[int] = set()

    def changed(self) -> set[int]:
        """Nodes that have more or fewer than when this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def on(self, node: int) -> int:
        return self._living[node]

    def count(self, home: Home) -> None:
        """Where it is now, if it lives."""
        node = None if home.gone else home.node
        if node == home.counted:
            return
        if home.counted is not None:
            self._living[home.counted] -= 1
            self._changed.add(home.counted)
        if node is not None:
            self._living[node] += 1
            self._changed.add(node)
        home.counted = node


class Hold(NamedTuple):
    fence: Fence
    cls: ActionClass | None
    node: int
    amounts: Amounts
    home: Name | None
    task: int
    granted: float
    started: float | None
    pod: Name | None = None
    """Whose cores it uses, without living there."""
    amounts_seq: int = 0
    """The resize that its amounts come from; 0 for the grant itself."""
    spent_milli_s: float = 0.0
    """Milli-core-seconds that it had before the last resize."""
    resized_at: float | None = None
    """None where it was not, or an earlier leader did it."""

    def mean_milli(self, *, until: float) -> int:
        """What it had of the cores on average, as far as is known, until it ended."""
        milli, began = self.amounts.get("cpu_milli", 0), self.started or self.granted
        if self.resized_at is None or until <= began:
            return milli
        mean = round((self.spent_milli_s + milli * max(0.0, until - self.resized_at)) / (until - began))
        return max(mean, 1)

    def mean_amounts(self, *, until: float) -> Amounts:
        """What it had on average."""
        return self.amounts if self.resized_at is None else {**self.amounts, "cpu_milli": self.mean_milli(until=until)}

    def running(self) -> Running:
        return Running(
            self.fence,
            self.cls,
            self.node,
            self.amounts,
            self.granted,
            self.task,
            since=self.started or self.granted,
            started=self.started,
            at_home=self.home is not None,
        )
