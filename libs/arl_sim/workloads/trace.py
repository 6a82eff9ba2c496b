"""Replay of recorded actions on other hardware or under another policy.

A trace consists of JSON lines: a header, then one line per action. Trajectories become closed loops again. An action is
submitted after the recorded thinking time, once all actions are done that were done when it was recorded. Actions that
were concurrent are therefore concurrent again. The recorded run time is taken as the work. Amdahl's law with the
declared parallel fraction gives the duration on other amounts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from typing import Any

from arl_core.domain.model import ResizeSupport, counted_resource
from arl_core.queue.quotas import TaskQuota
from arl_sim.cluster import CORE_MILLI
from arl_sim.workload import ActionWork, ResourceKind, SimTask, SimTrajectory, SimWorkload, TrajectoryAction

__all__ = ["RecordedAction", "RecordedTask", "RecordedTrace", "TraceError", "read_trace", "to_workload", "trace_lines"]

FORMAT = "tangram-trace"
VERSION = 3
READABLE_VERSIONS = (1, 2, 3)
"""Readable versions. Version 1 does not record whether an action ran in its trajectory's environment. Versions before 3
record neither the settings of tasks nor priority, deadline and support of resizes.
"""
_CORES = "cpu_milli"
_MEMORY = "memory_mib"


class TraceError(ValueError):
    """The file or one of its lines is not a trace; the message names the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAction:
    """A recorded action."""

    task: str
    trajectory: str | None
    class_key: str
    """Class name; actions of a class share duration estimates."""
    submitted_s: float
    ended_s: float
    run_s: float
    allocation: Mapping[str, int]
    """Amounts with which it ran."""
    demand: Mapping[str, int]
    """Minimum demand."""
    max_cpu_milli: int
    """Maximum milli-cores; equal to the minimum if it is not elastic."""
    step: int
    """Milli-cores between two allowed amounts."""
    parallel_fraction: float
    in_environment: bool = True
    """True if it ran in the persistent environment of its trajectory, where actions run one at a time.

    False if it had an environment of its own or none. If a trace does not record it, all actions of a trajectory count
    as sequential.
    """
    priority: int = 0
    deadline_s: float | None = None
    """Seconds from its submission within which it had to start; None without a deadline."""
    resizable: str = ResizeSupport.ANY
    """A value of `ResizeSupport`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTask:
    """The settings of a task when the trace was recorded."""

    weight: float = 1.0
    running: int | None = None
    """Quota of all granted and running actions; None without one."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """Quotas by resource, such as a slot of a reward service."""


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """The content of a trace."""

    actions: Sequence[RecordedAction]
    tasks: Mapping[str, RecordedTask] = field(default_factory=dict)


def trace_lines(trace: RecordedTrace) -> Iterator[str]:
    """Yield the lines of a trace."""
    tasks = {task: asdict(settings) for task, settings in trace.tasks.items()}
    yield json.dumps({"format": FORMAT, "version": VERSION, "tasks": tasks})
    for action in trace.actions:
        yield json.dumps(asdict(action))


def read_trace(lines: Iterable[str]) -> RecordedTrace:
    """Read a trace. Raises TraceError if it is not valid."""
    numbered = enumerate(lines, start=1)
    header = _parse_line(next(numbered, (1, ""))[1], 1)
    tasks = header.pop("tasks", {})
    if header not in [{"format": FORMAT, "version": version} for version in READABLE_VERSIONS]:
        raise TraceError(
            f"this is no {FORMAT} of version {READABLE_VERSIONS[0]} to {READABLE_VERSIONS[-1]}; "
            "`tangram record` writes one"
        )
    actions = [_parse_action(_parse_line(line, number), number) for number, line in numbered if line.strip()]
    return RecordedTrace(actions, _parse_tasks(tasks))


def to_workload(trace: RecordedTrace) -> SimWorkload:
    """Convert recorded actions to a workload. Raises TraceError if there are none.

    Scores count as calls. Gangs and custom resources are not simulated. An action without a trajectory becomes a
    trajectory of its own.
    """
    actions = trace.actions
    if not actions:
        raise TraceError("nothing was recorded in it")
    began_s = min(action.submitted_s for action in actions)
    trajectories: dict[tuple[str, str], list[RecordedAction]] = {}
    for number, action in enumerate(sorted(actions, key=lambda each: (each.submitted_s, each.ended_s))):
        name = (action.task, action.trajectory or f"#{number}")
        trajectories.setdefault(name, []).append(action)
    tasks = {task: SimTask(each.weight, TaskQuota(each.running, each.resources)) for task, each in trace.tasks.items()}
    return SimWorkload(tuple(_to_trajectory(each, began_s) for each in trajectories.values()), tasks=tasks)


def _to_trajectory(actions: Sequence[RecordedAction], first_submitted_s: float) -> SimTrajectory:
    """Convert the actions of one trajectory, sorted by submission."""
    starts_s = actions[0].submitted_s
    turns: list[TrajectoryAction] = []
    for action, after in zip(actions, _find_dependencies(actions), strict=True):
        ready_s = max((actions[before].ended_s for before in after), default=starts_s)
        think_s = max(0.0, action.submitted_s - ready_s)
        turns.append(
            TrajectoryAction(
                think_s,
                _to_work(action),
                depends_on=after,
                is_outside_environment=not action.in_environment,
                priority=action.priority,
                deadline_s=action.deadline_s,
            )
        )
    return SimTrajectory(actions[0].task, tuple(turns), starts_s=starts_s - first_submitted_s)


def _find_dependencies(actions: Sequence[RecordedAction]) -> list[tuple[int, ...]]:
    """Return the dependencies of each action: the actions done at its submission, without indirect ones.

    In an environment, the previous action there is always a dependency, even if it had not ended.
    """
    found: list[tuple[int, ...]] = []
    running: list[tuple[float, int]] = []
    over: set[int] = set()
    last: int | None = None
    for at, action in enumerate(actions):
        while running and running[0][0] <= action.submitted_s:
            ended = heappop(running)[1]
            over = (over - set(found[ended])) | {ended}
        after = set(over)
        if action.in_environment:
            if last is not None and actions[last].ended_s > action.submitted_s:
                after = (after - set(found[last])) | {last}
            last = at
        found.append(tuple(sorted(after)))
        heappush(running, (action.ended_s, at))
    return found


def _to_work(action: RecordedAction) -> ActionWork:
    least = action.demand.get(_CORES, 0)
    if not least:
        slots = tuple(sorted(name for name in action.demand if counted_resource({name: 1}) is not None))
        return ActionWork(cls=action.class_key, resource_kind=ResourceKind.API, seconds=action.run_s, slots=slots)
    amounts = [*range(least, action.max_cpu_milli, action.step), action.max_cpu_milli]
    fraction = action.parallel_fraction if len(amounts) > 1 else 0.0
    choices = tuple(amount / CORE_MILLI for amount in amounts)
    had = min(max(action.allocation.get(_CORES, least), least), action.max_cpu_milli) / CORE_MILLI
    whole = ActionWork(
        cls=action.class_key, resource_kind=ResourceKind.CPU, seconds=1.0, parallel_fraction=fraction, choices=choices
    )
    seconds = action.run_s / whole.duration_s(had)
    return ActionWork(
        cls=action.class_key,
        resource_kind=ResourceKind.CPU,
        seconds=seconds,
        parallel_fraction=fraction,
        choices=choices,
        fixed_units=choices[0],
        memory_mib=action.demand.get(_MEMORY),
        resizable=ResizeSupport(action.resizable),
    )


def _parse_line(line: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        raise TraceError(f"line {number} is no JSON") from None
    if not isinstance(found, dict):
        raise TraceError(f"line {number} is no object")
    return found


def _parse_tasks(tasks: Any) -> dict[str, RecordedTask]:
    try:
        found = {task: RecordedTask(**fields) for task, fields in tasks.items()}
        for each in found.values():
            quotas = [most for most in (each.running, *each.resources.values()) if most is not None]
            if each.weight <= 0 or any(most < 1 for most in quotas):
                raise TypeError("a weight or a quota is not positive")
    except (AttributeError, TypeError) as wrong:
        raise TraceError(f"line 1: {wrong}") from None
    return found


def _parse_action(fields: dict[str, Any], number: int) -> RecordedAction:
    try:
        action = RecordedAction(**fields)
        numbers = (action.submitted_s, action.ended_s, action.run_s, action.max_cpu_milli, action.step)
        if any(not isinstance(each, int | float) for each in numbers) or action.step < 1:
            raise TypeError("a time or an amount is no number")
        if not isinstance(action.priority, int) or not isinstance(action.deadline_s, int | float | None):
            raise TypeError("the priority or the deadline is no number")
        ResizeSupport(action.resizable)
    except (TypeError, ValueError) as wrong:
        raise TraceError(f"line {number}: {wrong}") from None
    return action
