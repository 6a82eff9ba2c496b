"""Record of a trajectory: its turns, and the parts of its time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from arl_core.domain.model import counted_resource
from arl_core.steps.prediction import TrajectoryState
from arl_core.steps.projection import BoostRule

__all__ = ["CPU", "TaskPace", "TrajectoryRecord", "TurnTimes", "saving_s", "waited_resource"]

CPU = "cpu"
"""Name of the resource that actions without slots and calls wait for."""
MIN_WAIT_S = 1e-6


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """The measured times of an action that ran to its own end, in seconds."""

    run_s: float
    """Run time without waiting for shared cores."""
    wall_s: float
    """Real run time."""
    cpu_s: float


@dataclass(slots=True)
class _OpenAction:
    queued: float
    resource: str
    think_s: float
    granted: float | None = None


@dataclass(slots=True, kw_only=True)
class TrajectoryRecord:
    """A trajectory of a step. All times are seconds of the database's clock."""

    started: float
    active: float
    """Time of the last event."""
    prompt: str | None = None
    group: str | None = None
    expected_turns: int | None = None
    progress: float | None = None
    node: int | None = None
    """Node of the latest grant."""
    ended: float | None = None
    turns: int = 0
    think_s: float = 0.0
    queue_s: float = 0.0
    run_s: float = 0.0
    core_wait_s: float = 0.0
    overhead_s: float = 0.0
    cpu_s: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    """Seconds of waiting by resource, in the queue and for shared cores."""
    rest_s: float | None = None
    """Predicted solo seconds until the end, at the last projection."""
    log_deviation: float | None = None
    saved_rest_s: float | None = None
    """Predicted rest that was last marked for saving."""
    rule: BoostRule = BoostRule.NO_PREDICTION
    _open: dict[UUID, _OpenAction] = field(default_factory=dict)
    _idle_since: float | None = None
    _solo_at_progress_s: float = 0.0

    @property
    def solo_s(self) -> float:
        """Return the seconds that it took without waiting: thinking and running."""
        return self.think_s + self.run_s

    @property
    def open_actions(self) -> tuple[UUID, ...]:
        """Return the queued and running actions."""
        return tuple(self._open)

    def set_hints(
        self, *, prompt: str | None, group: str | None, expected_turns: int | None, progress: float | None
    ) -> None:
        """Set the hints of an action. None keeps the earlier value."""
        self.prompt = prompt or self.prompt
        self.group = group or self.group
        self.expected_turns = expected_turns or self.expected_turns
        if progress is not None:
            self.progress, self._solo_at_progress_s = progress, self.solo_s

    def to_state(self, earlier_s: Sequence[float], *, now: float) -> TrajectoryState:
        """Return the facts for a prediction, with the lengths of earlier passes of the prompt.

        The time since its last action is thinking. The hint of progress is extrapolated with the solo time since it was
        given.
        """
        thinking_s = max(0.0, now - self._idle_since) if self._idle_since is not None else 0.0
        progress, solo_s = self.progress, self.solo_s
        if progress is not None and self._solo_at_progress_s > 0.0:
            progress = min(1.0, progress * solo_s / self._solo_at_progress_s)
        return TrajectoryState(
            turns=self.turns,
            open_turns=len(self._open),
            solo_s=solo_s,
            thinking_s=thinking_s,
            expected_turns=self.expected_turns,
            progress=progress,
            earlier_s=earlier_s,
        )

    def resume(self, *, idle_since: float | None) -> None:
        """Forget the open actions after a change of leader; those that exist are added again."""
        self._open.clear()
        self._idle_since = idle_since

    def add_queued(self, action_id: UUID, *, at: float, resource: str) -> None:
        """Add an action that waits. The time without an action before it was thinking."""
        if action_id in self._open:
            return
        think_s = max(0.0, at - self._idle_since) if self._idle_since is not None and not self._open else 0.0
        self.think_s += think_s
        self._open[action_id] = _OpenAction(at, resource, think_s)
        self._idle_since, self.ended, self.active = None, None, max(self.active, at)

    def record_granted(self, action_id: UUID, *, at: float, node: int) -> None:
        """Record a grant of a queued action."""
        action = self._open.get(action_id)
        if action is None or action.granted is not None:
            return
        waited_s = max(0.0, at - action.queued)
        self.queue_s += waited_s
        self._wait(action.resource, waited_s)
        action.granted, self.node, self.active = at, node, max(self.active, at)

    def record_requeued(self, action_id: UUID, *, at: float) -> None:
        """Record that an attempt ended without a result. It took time and was no turn."""
        action = self._open.get(action_id)
        if action is None or action.granted is None:
            return
        self.overhead_s += max(0.0, at - action.granted)
        action.queued, action.granted, self.active = at, None, max(self.active, at)

    def record_ended(self, action_id: UUID, *, at: float, times: TurnTimes | None) -> float:
        """Record a turn. Without measured times, all time since the grant counts as running.

        Returns:
            The solo seconds of the turn: the thinking before it, and its run time.
        """
        action, solo_s = self._open.pop(action_id, None), self.run_s
        if action is None:
            return 0.0
        occupied_s = max(0.0, at - action.granted) if action.granted is not None else 0.0
        if times is None:
            self.run_s += occupied_s
        else:
            core_wait_s = max(0.0, times.wall_s - times.run_s)
            self.run_s += times.run_s
            self.cpu_s += times.cpu_s
            self.core_wait_s += core_wait_s
            self._wait(CPU, core_wait_s)
            self.overhead_s += max(0.0, occupied_s - times.wall_s)
        self.turns += 1
        self._close(at)
        return action.think_s + self.run_s - solo_s

    def drop(self, action_id: UUID, *, at: float) -> None:
        """Remove an action that settled in the queue."""
        if self._open.pop(action_id, None) is not None:
            self._close(at)

    def _close(self, at: float) -> None:
        self.active = max(self.active, at)
        if not self._open:
            self._idle_since = at

    def _wait(self, resource: str, seconds: float) -> None:
        if seconds >= MIN_WAIT_S:
            self.waits[resource] = self.waits.get(resource, 0.0) + seconds


@dataclass(slots=True)
class TaskPace:
    """Means of a task's trajectories, over all of its steps. Later turns count more."""

    turns: float = 0.0
    solo_s: float = 0.0
    cpu_s: float = 0.0
    trajectories: float = 0.0
    total_s: float = 0.0

    def add_turn(self, solo_s: float, cpu_s: float) -> None:
        """Add the solo time of a turn and its CPU time."""
        self.turns = self.turns * TURN_DECAY + 1.0
        self.solo_s = self.solo_s * TURN_DECAY + solo_s
        self.cpu_s = self.cpu_s * TURN_DECAY + cpu_s

    def add_trajectory(self, total_s: float) -> None:
        """Add the solo time of a whole trajectory."""
        self.trajectories = self.trajectories * TRAJECTORY_DECAY + 1.0
        self.total_s = self.total_s * TRAJECTORY_DECAY + total_s

    @property
    def turn_s(self) -> float:
        """Return the mean solo seconds of a turn; a default without any, of which only the ratios matter."""
        return self.solo_s / self.turns if self.solo_s > 0.0 else DEFAULT_TURN_S

    @property
    def cpu_fraction(self) -> float:
        """Return the mean core-seconds of a solo second."""
        return self.cpu_s / self.solo_s if self.solo_s > 0.0 else DEFAULT_CPU_FRACTION

    @property
    def trajectory_s(self) -> float:
        """Return the mean solo seconds of a trajectory; 0 without any."""
        return self.total_s / self.trajectories if self.trajectories else 0.0


DEFAULT_TURN_S, DEFAULT_CPU_FRACTION = 1.0, 0.3
"""Means of a task without turns. Sandboxes of recorded agents compute for 24 to 36 % of the time."""
TURN_DECAY, TRAJECTORY_DECAY = 0.999, 0.99
"""Weight of the earlier values at each new one: the means follow about the last 1000 turns and 100 trajectories."""


def waited_resource(demand: Mapping[str, int]) -> str:
    """Return the resource that an action with this demand waits for: slots or calls, otherwise cores."""
    return counted_resource(demand) or CPU


def saving_s(waited_s: float, *, units: float) -> float:
    """Return the seconds of waiting that one more unit would have saved: `waited_s / (units + 1)`.

    The waiting time is taken as inversely proportional to the number of units, so `waited_s * units / (units + 1)`
    remains. It is an upper bound for the step: once its slowest trajectory waits less, another may end last.

    Args:
        waited_s: Seconds that the slowest trajectory waited for the resource.
        units: Units that exist, such as cores.
    """
    return max(0.0, waited_s) / (max(0.0, units) + 1.0)
