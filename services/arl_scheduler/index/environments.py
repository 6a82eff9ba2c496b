"""Records of environments and of positions in the queue."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from arl_core.domain.model import PinnedEnvironment, QueuedAction, TrajectoryName, TrajectoryPod
from arl_core.domain.states import ENVIRONMENT_OUT_OF_MEMORY, ActionOutcome
from arl_scheduler.index.environment_queue import EnvironmentQueue

__all__ = ["EnvironmentName", "EnvironmentTable", "EnvironmentsPerNode", "QueuePosition", "TrackedEnvironment"]

EnvironmentName = TrajectoryName


@dataclass(slots=True)
class TrackedEnvironment:
    """A persistent environment, from its first queued action until its end."""

    name: EnvironmentName
    id: UUID
    node: int | None = None
    counted_on: int | None = None
    """Node whose number of environments includes it."""
    trajectory_started_at: float = float("inf")
    """Submission time of the earliest known action of its trajectory."""
    is_confirmed: bool = False
    """True once a poll has read its row."""
    may_exist: bool = False
    """True once an action was granted in it: there may be a row that no poll has read yet."""
    is_ended: bool = False
    is_out_of_memory: bool = False
    is_delete_requested: bool = False
    active_action: UUID | None = None
    """Its granted or running action; at most one."""
    is_requeueing: bool = False
    """True while an action was re-queued and no poll has read that. No other action may start before."""
    queue: EnvironmentQueue = field(default_factory=EnvironmentQueue)
    """Queued actions in order of id. Only the first is a candidate, and only while the environment is free."""
    candidate: tuple[UUID, UUID, int | None] | None = None
    """The candidate, and the environment and node for which it was offered."""

    @property
    def outcome_of_stranded(self) -> tuple[ActionOutcome, str | None]:
        """The outcome and reason of actions that find the environment ended."""
        if self.is_out_of_memory:
            return ActionOutcome.LIMIT_EXCEEDED, ENVIRONMENT_OUT_OF_MEMORY
        return ActionOutcome.INFRA_ERROR, "environment_lost"

    def bind_action(self, action: QueuedAction) -> QueuedAction:
        """Return the action, pinned to this environment and its current node."""
        known = action.environment
        if known is not None and known.id == self.id and known.node == self.node:
            return action
        return action._replace(environment=PinnedEnvironment(self.id, self.node))


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A queued action and the reasons why it is not a candidate."""

    action: QueuedAction
    """The action, pinned to its environment if it has one."""
    is_paused: bool
    is_next: bool
    """True if its environment is free and it is first in order; always true without an environment."""
    ahead_count: int
    """Actions that run in its environment or precede it there."""

    @classmethod
    def from_action(
        cls, action: QueuedAction, environment: TrackedEnvironment | None, *, is_paused: bool
    ) -> "QueuePosition":
        """Return the position of a queued action in the queue of its environment."""
        if environment is None:
            return cls(action, is_paused, is_next=True, ahead_count=0)
        is_next = environment.candidate is not None and environment.candidate[0] == action.id
        before = environment.queue.count_before(action.id) + int(environment.active_action is not None)
        return cls(environment.bind_action(action), is_paused, is_next, before)


class EnvironmentTable(dict[EnvironmentName, TrackedEnvironment]):
    """A table of all environments that are queued for, in use or kept."""

    def __init__(self) -> None:
        super().__init__()
        self._tombstones: set[EnvironmentName] = set()
        """Environments that ended or were lost and whose names are still in use."""
        self._awaited: set[EnvironmentName] = set()
        """Tombstones with queued actions; usually few of all."""

    def set_tombstone(self, environment: TrackedEnvironment, *, is_tombstone: bool) -> None:
        """Record whether an environment is a tombstone."""
        (self._tombstones.add if is_tombstone else self._tombstones.discard)(environment.name)

    def update_awaited(self, environment: TrackedEnvironment) -> None:
        """Update whether actions are queued for a tombstone."""
        is_awaited = bool(environment.queue) and environment.name in self._tombstones
        (self._awaited.add if is_awaited else self._awaited.discard)(environment.name)

    def environment_id(self, name: EnvironmentName | None) -> UUID | None:
        """Return the id of a named environment; None if there is no name or the environment has no row yet."""
        home = self.get(name) if name is not None else None
        return home.id if home is not None else None

    def is_live(self, environment: UUID | None, name: EnvironmentName | None) -> bool:
        """Return False only if the environment is known to have ended."""
        home = self.get(name) if name is not None else None
        return not (home is not None and home.id == environment and home.is_ended)

    def exists(self, environment: UUID | None, name: EnvironmentName | None) -> bool:
        """Return True if polls have seen a row of the environment."""
        home = self.get(name) if name is not None else None
        return home is not None and home.is_confirmed and home.id == environment

    def has_live_on(self, node: int) -> bool:
        """Return True if a confirmed live environment is on the node."""
        return any(home.node == node and home.is_confirmed and not home.is_ended for home in self.values())

    def trajectory_pods(self, pod_users: Mapping[EnvironmentName, int]) -> dict[EnvironmentName, TrajectoryPod]:
        """Return the live environments as pods. `pod_users` counts the outside actions that use a pod's cores."""
        return {
            name: TrajectoryPod(home.node, is_busy=home.active_action is not None or pod_users.get(name, 0) > 0)
            for name, home in self.items()
            if home.node is not None and not home.is_ended
        }

    def stranded_actions(self, *, limit: int) -> dict[UUID, tuple[ActionOutcome, str | None]]:
        """Return queued actions whose environment is a tombstone, with the outcome and reason of each.

        They would otherwise run in another, empty one.
        """
        waited_for = [self[name] for name in sorted(self._awaited)]
        free = [home for home in waited_for if home.active_action is None]
        found = ((action_id, home.outcome_of_stranded) for home in free for action_id in home.queue)
        return dict(islice(found, limit))


class EnvironmentsPerNode:
    """Numbers of live environments per node."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._changed: set[int] = set()

    def take_changed(self) -> set[int]:
        """Return the nodes whose numbers changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def count_on(self, node: int) -> int:
        """Return the number of live environments on a node."""
        return self._counts[node]

    def update(self, environment: TrackedEnvironment) -> None:
        """Count an environment on its current node, if it is live."""
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
