"""The open trajectories of training steps, as the leader sees their actions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from arl_core.domain.model import Fence
from arl_core.steps.projection import BoostRule
from arl_core.steps.trajectory_record import TaskPace, TrajectoryRecord, TurnTimes, waited_resource
from arl_scheduler.index.allocations import Allocation
from arl_scheduler.queries.estimate_queries import RunDuration
from arl_scheduler.queries.poll_result import AllocationRow
from arl_wire.internal.scheduler import QueuedActionRow, TrajectoryHintsPayload

__all__ = ["IDLE_S", "PASSES", "PromptName", "StepTracker", "TrajectoryKey"]

IDLE_S = 900.0
"""Seconds without an action after which a trajectory counts as ended."""
MAX_TRAJECTORIES = 20_000
"""Tracked trajectories. The actions of further ones are scheduled without steps."""
PASSES = 16
"""Trajectories of one prompt whose lengths are kept, the latest ones."""

PromptName = tuple[int, str]
"""Task and prompt."""


class TrajectoryKey(NamedTuple):
    """A trajectory of a step of a task."""

    queue_id: int
    step: int
    trajectory: str


@dataclass(slots=True)
class _PromptHistory:
    passes: list[tuple[int, float]] = field(default_factory=list)
    """Step and solo seconds of each known trajectory, the latest last."""
    is_loaded: bool = False


class StepTracker:
    """A tracker of trajectories by step. Without actions that name a step, it does nothing."""

    def __init__(self) -> None:
        self.records: dict[TrajectoryKey, TrajectoryRecord] = {}
        self.paces: dict[int, TaskPace] = {}
        self.is_changed = False
        """True if an event since the last projection may change it."""
        self.unsaved: set[TrajectoryKey] = set()
        self.unsaved_prompts: set[PromptName] = set()
        self._by_action: dict[UUID, TrajectoryKey] = {}
        self._gang_members: set[UUID] = set()
        self._by_name: dict[tuple[int, str], set[TrajectoryKey]] = {}
        self._prompts: dict[PromptName, _PromptHistory] = {}
        self._unloaded: set[PromptName] = set()

    def add_queued(self, action_id: UUID, row: QueuedActionRow) -> None:
        """Add a queued action that names a step and a trajectory."""
        record = self._record(action_id, row.queue_id, row.step, row.trajectory, at=row.submitted, hints=row.hints)
        if record is not None:
            record.add_queued(action_id, at=row.submitted, resource=waited_resource(row.demand))
            if row.gang is not None:
                self._gang_members.add(action_id)

    def may_go_first(self, action_id: UUID) -> bool:
        """Return False for a member of a gang, which is never preferred."""
        return action_id not in self._gang_members

    def adopt(self, action_id: UUID, row: AllocationRow) -> None:
        """Add an action that an earlier leader granted."""
        record = self._record(action_id, row.queue_id, row.step, row.trajectory, at=row.granted, hints=row.hints)
        if record is not None:
            record.add_queued(action_id, at=row.granted, resource=waited_resource(row.resources))
            record.record_granted(action_id, at=row.granted, node=row.node)

    def is_critical(self, action_id: UUID) -> bool:
        """Return True if the action belongs to a critical trajectory."""
        key = self._by_action.get(action_id)
        return key is not None and self.records[key].rule is BoostRule.CRITICAL_TRAJECTORY

    def record_of(self, action_id: UUID) -> tuple[TrajectoryKey, TrajectoryRecord] | None:
        """Return the trajectory of a queued or granted action."""
        key = self._by_action.get(action_id)
        return None if key is None else (key, self.records[key])

    def record_granted(self, action_id: UUID, *, at: float, node: int) -> None:
        """Record a grant."""
        if (key := self._by_action.get(action_id)) is not None:
            self.records[key].record_granted(action_id, at=at, node=node)
            self._touch(key)

    def record_released(
        self,
        released: Iterable[Allocation],
        runs: Mapping[Fence, RunDuration],
        *,
        is_requeued: Callable[[Fence], bool],
        at: float,
    ) -> None:
        """Record released allocations: turns, and attempts whose actions are queued again."""
        if not self._by_action:
            return
        for hold in released:
            action_id = hold.fence.action_id
            key = self._by_action.get(action_id)
            if key is None:
                continue
            record = self.records[key]
            if is_requeued(hold.fence):
                record.record_requeued(action_id, at=at)
            else:
                self._record_turn(key, record, action_id, runs.get(hold.fence), at=at)
            self._touch(key)

    def drop(self, action_ids: Iterable[UUID], *, at: float) -> None:
        """Remove actions that settled in the queue."""
        for action_id in action_ids:
            self._gang_members.discard(action_id)
            if (key := self._by_action.pop(action_id, None)) is not None:
                self.records[key].drop(action_id, at=at)
                self._touch(key)

    def end_trajectory(self, queue_id: int, trajectory: str, *, at: float) -> None:
        """End the trajectories of this name that began before `at`."""
        for key in tuple(self._by_name.get((queue_id, trajectory), ())):
            if self.records[key].started < at:
                self._end(key, at=at)

    def end_step(self, queue_id: int, step: int, *, at: float) -> None:
        """End the open trajectories of a step that were active before `at`."""
        for key, record in tuple(self.records.items()):
            if (key.queue_id, key.step) == (queue_id, step) and record.started <= at:
                self._end(key, at=at)

    def expire(self, now: float) -> None:
        """End trajectories that are idle for too long, and forget saved ones that have ended."""
        for key, record in tuple(self.records.items()):
            if record.ended is None and not record.open_actions and now - record.active > IDLE_S:
                self._end(key, at=record.active)
            elif record.ended is not None and key not in self.unsaved and not record.open_actions:
                self._forget(key)

    def open_trajectories(self) -> Iterator[tuple[TrajectoryKey, TrajectoryRecord]]:
        """Yield the trajectories that have not ended."""
        return ((key, record) for key, record in self.records.items() if record.ended is None)

    def earlier_s(self, key: TrajectoryKey, record: TrajectoryRecord) -> list[float]:
        """Return the lengths of the prompt's trajectories in other steps."""
        history = self._prompts.get((key.queue_id, record.prompt)) if record.prompt is not None else None
        return [solo_s for step, solo_s in history.passes if step != key.step] if history is not None else []

    def passes_of(self, prompt: PromptName) -> list[tuple[int, float]]:
        """Return step and solo seconds of the known trajectories of a prompt."""
        return self._prompts[prompt].passes if prompt in self._prompts else []

    def take_unloaded_prompts(self) -> set[PromptName]:
        """Return the prompts whose history must be read."""
        unloaded, self._unloaded = self._unloaded, set()
        return unloaded

    def add_passes(self, found: Mapping[PromptName, Iterable[tuple[int, float]]], asked: Iterable[PromptName]) -> None:
        """Add the history of prompts that was read. A prompt without rows has none."""
        for prompt in asked:
            history = self._prompts.setdefault(prompt, _PromptHistory())
            history.passes = [*found.get(prompt, ()), *history.passes][-PASSES:]
            history.is_loaded = True
        self.is_changed = True

    def restore(self, key: TrajectoryKey, record: TrajectoryRecord) -> None:
        """Add a trajectory that an earlier leader saved."""
        self._add(key, record)

    def forget_actions(self) -> None:
        """Forget queued and granted actions before the index is rebuilt."""
        self._by_action.clear()
        self._gang_members.clear()
        for record in self.records.values():
            record.resume(idle_since=record.active)

    def _record(
        self,
        action_id: UUID,
        queue_id: int,
        step: int | None,
        trajectory: str | None,
        *,
        at: float,
        hints: TrajectoryHintsPayload | None,
    ) -> TrajectoryRecord | None:
        """Return the trajectory of a new action; None if it is known or not tracked."""
        if step is None or trajectory is None or action_id in self._by_action:
            return None
        key = TrajectoryKey(queue_id, step, trajectory)
        record = self.records.get(key)
        if record is None:
            if len(self.records) >= MAX_TRAJECTORIES:
                return None
            record = TrajectoryRecord(started=at, active=at)
            self._add(key, record)
        if hints is not None:
            record.set_hints(**hints.model_dump())
            self._want_prompt(key, record)
        self._by_action[action_id] = key
        self._touch(key)
        return record

    def _record_turn(
        self, key: TrajectoryKey, record: TrajectoryRecord, action_id: UUID, run: RunDuration | None, *, at: float
    ) -> None:
        del self._by_action[action_id]
        self._gang_members.discard(action_id)
        times = None
        if run is not None:
            times = TurnTimes(run_s=run.run_us / 1e6, wall_s=run.real_us / 1e6, cpu_s=run.cpu_us / 1e6)
        turn_s = record.record_ended(action_id, at=at, times=times)
        self.paces.setdefault(key.queue_id, TaskPace()).add_turn(turn_s, times.cpu_s if times is not None else 0.0)

    def _end(self, key: TrajectoryKey, *, at: float) -> None:
        record = self.records[key]
        if record.ended is not None:
            return
        record.ended, record.rule, record.rest_s = max(record.started, at), BoostRule.TRAJECTORY_ENDED, None
        self._touch(key)
        if not record.turns:
            return
        self.paces.setdefault(key.queue_id, TaskPace()).add_trajectory(record.solo_s)
        if record.prompt is not None:
            prompt = (key.queue_id, record.prompt)
            history = self._prompts.setdefault(prompt, _PromptHistory())
            history.passes = [*history.passes, (key.step, round(record.solo_s, 3))][-PASSES:]
            self.unsaved_prompts.add(prompt)

    def _add(self, key: TrajectoryKey, record: TrajectoryRecord) -> None:
        self.records[key] = record
        self._by_name.setdefault((key.queue_id, key.trajectory), set()).add(key)
        self._want_prompt(key, record)

    def _forget(self, key: TrajectoryKey) -> None:
        del self.records[key]
        name = (key.queue_id, key.trajectory)
        self._by_name[name].discard(key)
        if not self._by_name[name]:
            del self._by_name[name]
        if not self.records:
            self._prompts = {name: self._prompts[name] for name in self.unsaved_prompts}

    def _want_prompt(self, key: TrajectoryKey, record: TrajectoryRecord) -> None:
        if record.prompt is not None and (key.queue_id, record.prompt) not in self._prompts:
            self._prompts[key.queue_id, record.prompt] = _PromptHistory()
            self._unloaded.add((key.queue_id, record.prompt))

    def _touch(self, key: TrajectoryKey) -> None:
        self.unsaved.add(key)
        self.is_changed = True
