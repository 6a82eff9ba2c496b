"""What the index remembers of an environment and of a grant."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from arl_core.domain.model import PinnedEnvironment, QueuedAction, TrajectoryName, TrajectoryPod

__all__ = ["EnvironmentName", "EnvironmentTable", "EnvironmentsPerNode", "QueuePosition", "TrackedEnvironment"]

EnvironmentName = TrajectoryName


@dataclass(slots=True)
class TrackedEnvironment:
    """A persistent environment, from the first action that wants it until its end."""

    name: EnvironmentName
    id: UUID
    node: int | None = None
    counted_on: int | None = None
    """The node among whose homes it is counted."""
    trajectory_started_at: float = float("inf")
    """When the first action of its trajectory that is known was submitted."""
    is_confirmed: bool = False
    """A poll has read its row."""
    may_exist: bool = False
    """An action was granted in it, so there may be a row that no poll has read yet."""
    is_ended: bool = False
    is_delete_requested: bool = False
    active_action: UUID | None = None
    """Its granted or running action; at first one at a time."""
    is_requeueing: bool = False
    """An action of it went back to the queue: until a poll has read that, nobody may overtake it."""
    queue: list[UUID] = field(default_factory=list)
    """Queued actions in order of id. Only the first is a candidate, and only while nothing is busy."""
    candidate: tuple[UUID, UUID, int | None] | None = None
    """The candidate, with the environment and node it was offered for."""

    def bind_action(self, action: QueuedAction) -> QueuedAction:
        """The action in this environment, where that is by now."""
        known = action.environment
        if known is not None and known.id == self.id and known.node == self.node:
            return action
        return action._replace(environment=PinnedEnvironment(self.id, self.node))


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A queued action and what keeps it from being a candidate."""

    action: QueuedAction
    """With its environment, if it has one."""
    is_paused: bool
    is_next: bool
    """Its environment is free, and its turn; always so of one without."""
    ahead_count: int
    """Actions that its environment runs or that come first in it."""

    @classmethod
    def from_action(
        cls, action: QueuedAction, environment: TrackedEnvironment | None, *, is_paused: bool
    ) -> "QueuePosition":
        if environment is None:
            return cls(action, is_paused, is_next=True, ahead_count=0)
        is_next = environment.candidate is not None and environment.candidate[0] == action.id
        before = environment.queue.index(action.id) + int(environment.active_action is not None)
        return cls(environment.bind_action(action), is_paused, is_next, before)


class EnvironmentTable(dict[EnvironmentName, TrackedEnvironment]):
    """All environments that somebody waits for, holds or has left behind."""

    def __init__(self) -> None:
        super().__init__()
        self._tombstones: set[EnvironmentName] = set()
        """Those that are gone and whose names are taken still."""
        self._awaited: set[EnvironmentName] = set()
        """Those of them that actions wait for: they may be few of many."""

    def set_tombstone(self, environment: TrackedEnvironment, *, is_tombstone: bool) -> None:
        """Whether it `stays` as a tombstone."""
        (self._tombstones.add if is_tombstone else self._tombstones.discard)(environment.name)

    def update_awaited(self, environment: TrackedEnvironment) -> None:
        """Others wait for it than before, or nobody."""
        is_awaited = bool(environment.queue) and environment.name in self._tombstones
        (self._awaited.add if is_awaited else self._awaited.discard)(environment.name)

    def environment_id(self, name: EnvironmentName | None) -> UUID | None:
        home = self.get(name) if name is not None else None
        return home.id if home is not None else None

    def is_live(self, environment: UUID | None, name: EnvironmentName | None) -> bool:
        """False only for an environment that is known to be gone."""
        home = self.get(name) if name is not None else None
        return not (home is not None and home.id == environment and home.is_ended)

    def exists(self, environment: UUID | None, name: EnvironmentName | None) -> bool:
        """Whether the environment has a row, as far as polls have seen."""
        home = self.get(name) if name is not None else None
        return home is not None and home.is_confirmed and home.id == environment

    def has_live_on(self, node: int) -> bool:
        """Whether any does."""
        return any(home.node == node and home.is_confirmed and not home.is_ended for home in self.values())

    def trajectory_pods(self, pod_users: Mapping[EnvironmentName, int]) -> dict[EnvironmentName, TrajectoryPod]:
        """Of those that live; `lent` counts the actions outside of each that use its cores."""
        return {
            name: TrajectoryPod(home.node, is_busy=home.active_action is not None or pod_users.get(name, 0) > 0)
            for name, home in self.items()
            if home.node is not None and not home.is_ended
        }

    def stranded_actions(self) -> list[UUID]:
        """Queued actions whose environment is a tombstone: they would run in another, empty one."""
        waited_for = [self[name] for name in sorted(self._awaited)]
        return [action_id for home in waited_for if home.active_action is None for action_id in home.queue]


class EnvironmentsPerNode:
    """How many each node has."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._changed: set[int] = set()

    def take_changed(self) -> set[int]:
        """Nodes that have more or fewer than when this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def count_on(self, node: int) -> int:
        return self._counts[node]

    def update(self, environment: TrackedEnvironment) -> None:
        """Where it is now, if it lives."""
        node = None if environment.is_ended else environment.node
        if node == environment.counted_on:
            return
        if environment.counted_on is not None:
            self._counts[environment.counted_on] -= 1
            self._changed.add(environment.counted_on)
        if node is not None:
            self._counts[node] += 1
            self._changed.add(node)
        environment.counted_on = node
