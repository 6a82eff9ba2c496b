"""What was recorded of real actions, run again on other hardware or under another policy.

A trace is lines of JSON: a header, then an action each. Trajectories are closed loops again: an action is submitted
when all those are over that were when it was recorded, after as much thinking as then; so what ran side by side does so
again. What a run took is taken as its work: Amdahl's law says how long it would have been on other amounts, with what
was declared; nothing else is known of it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import Any

from arl_sim.cluster import CORE_MILLI
from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction

__all__ = ["RecordedAction", "TraceError", "read_trace", "to_workload", "trace_lines"]

FORMAT = "tangram-trace"
VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Versions: the first does not say what ran in the environment of its trajectory."""
_CORES = "cpu_milli"


class TraceError(ValueError):
    """The file is no trace, or a line of it is none; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAction:
    """One action that ran."""

    task: str
    trajectory: str | None
    alike: str
    """Actions with the same one are learnt from together."""
    submitted_s: float
    ended_s: float
    run_s: float
    had: Mapping[str, int]
    """The amounts it ran with."""
    demand: Mapping[str, int]
    """The least it asked for."""
    most: int
    """Milli-cores it could use; as many as it asked for where it is not elastic."""
    step: int
    """Between amounts it could be given."""
    parallel_fraction: float
    in_environment: bool = True
    """In the kept one of its trajectory, where one runs at a time; False of one in an environment of its own, or in
    none. Where a trace does not say, all of a trajectory is taken to have been one after another."""


def trace_lines(actions: Iterable[RecordedAction]) -> Iterator[str]:
    """A trace, line by line."""
    yield json.dumps({"format": FORMAT, "version": VERSION})
    for action in actions:
        yield json.dumps(asdict(action))


def read_trace(lines: Iterable[str]) -> list[RecordedAction]:
    """Raises `TraceError`."""
    numbered = enumerate(lines, start=1)
    _, header = next(numbered, (1, ""))
    if _parse_line(header, 1) not in [{"format": FORMAT, "version": version} for version in READABLE_VERSIONS]:
        raise TraceError(
            f"this is no {FORMAT} of version {READABLE_VERSIONS[0]} to {READABLE_VERSIONS[-1]}; "
            "`tangram record` writes one"
        )
    return [_parse_action(_parse_line(line, number), number) for number, line in numbered if line.strip()]


def to_workload(actions: Sequence[RecordedAction]) -> SimWorkload:
    """Scores count as calls; what has no trajectory is one of its own."""
    if not actions:
        raise TraceError("nothing was recorded in it")
    began_s = min(action.submitted_s for action in actions)
    trajectories: dict[tuple[str, str], list[RecordedAction]] = {}
    for number, action in enumerate(sorted(actions, key=lambda each: (each.submitted_s, each.ended_s))):
        name = (action.task, action.trajectory or f"#{number}")
        trajectories.setdefault(name, []).append(action)
    return SimWorkload(tuple(_to_trajectory(each, began_s) for each in trajectories.values()))


def _to_trajectory(actions: Sequence[RecordedAction], first_submitted_s: float) -> SimTrajectory:
    """Of one trajectory, by when they were submitted."""
    starts_s = actions[0].submitted_s
    turns: list[TrajectoryAction] = []
    for action, after in zip(actions, _find_dependencies(actions), strict=True):
        ready_s = max((actions[before].ended_s for before in after), default=starts_s)
        think_s = max(0.0, action.submitted_s - ready_s)
        turns.append(
            TrajectoryAction(
                think_s, _to_work(action), depends_on=after, is_outside_environment=not action.in_environment
            )
        )
    return SimTrajectory(actions[0].task, tuple(turns), starts_s=starts_s - first_submitted_s)


def _find_dependencies(actions: Sequence[RecordedAction]) -> list[tuple[int, ...]]:
    """Of each, those that were over when it was submitted, but for those that one of these had waited for.

    In an environment also the one before it there, over or not.
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
        return ActionWork(cls=action.alike, resource_kind=ResourceKind.API, seconds=action.run_s)
    amounts = [*range(least, action.most, action.step), action.most]
    fraction = action.parallel_fraction if len(amounts) > 1 else 0.0
    choices = tuple(amount / CORE_MILLI for amount in amounts)
    had = min(max(action.had.get(_CORES, least), least), action.most) / CORE_MILLI
    whole = ActionWork(
        cls=action.alike, resource_kind=ResourceKind.CPU, seconds=1.0, parallel_fraction=fraction, choices=choices
    )
    seconds = action.run_s / whole.duration_s(had)
    return ActionWork(
        cls=action.alike,
        resource_kind=ResourceKind.CPU,
        seconds=seconds,
        parallel_fraction=fraction,
        choices=choices,
        fixed_units=choices[0],
    )


def _parse_line(line: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        raise TraceError(f"line {number} is no JSON") from None
    if not isinstance(found, dict):
        raise TraceError(f"line {number} is no object")
    return found


def _parse_action(fields: dict[str, Any], number: int) -> RecordedAction:
    try:
        action = RecordedAction(**fields)
        numbers = (action.submitted_s, action.ended_s, action.run_s, action.most, action.step)
        if any(not isinstance(each, int | float) for each in numbers) or action.step < 1:
            raise TypeError("a time or an amount is no number")
    except TypeError as wrong:
        raise TraceError(f"line {number}: {wrong}") from None
    return action
