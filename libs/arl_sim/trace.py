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

from arl_sim.site import CORE_MILLI
from arl_sim.workload import Need, Rollout, Turn, Work, Workload

__all__ = ["Recorded", "TraceError", "lines_of", "read_trace", "workload_of"]

FORMAT = "tangram-trace"
VERSION = 2
READ = (1, 2)
"""Versions: the first does not say what ran in the environment of its trajectory."""
_CORES = "cpu_milli"


class TraceError(ValueError):
    """The file is no trace, or a line of it is none; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
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


def lines_of(actions: Iterable[Recorded]) -> Iterator[str]:
    """A trace, line by line."""
    yield json.dumps({"format": FORMAT, "version": VERSION})
    for action in actions:
        yield json.dumps(asdict(action))


def read_trace(lines: Iterable[str]) -> list[Recorded]:
    """Raises `TraceError`."""
    numbered = enumerate(lines, start=1)
    _, header = next(numbered, (1, ""))
    if _parsed(header, 1) not in [{"format": FORMAT, "version": version} for version in READ]:
        raise TraceError(f"this is no {FORMAT} of version {READ[0]} to {READ[-1]}; `tangram record` writes one")
    return [_recorded(_parsed(line, number), number) for number, line in numbered if line.strip()]


def workload_of(actions: Sequence[Recorded]) -> Workload:
    """Scores count as calls; what has no trajectory is one of its own."""
    if not actions:
        raise TraceError("nothing was recorded in it")
    began_s = min(action.submitted_s for action in actions)
    trajectories: dict[tuple[str, str], list[Recorded]] = {}
    for number, action in enumerate(sorted(actions, key=lambda each: (each.submitted_s, each.ended_s))):
        name = (action.task, action.trajectory or f"#{number}")
        trajectories.setdefault(name, []).append(action)
    return Workload(tuple(_rollout(each, began_s) for each in trajectories.values()))


def _rollout(actions: Sequence[Recorded], began_s: float) -> Rollout:
    """Of one trajectory, by when they were submitted."""
    starts_s = actions[0].submitted_s
    turns: list[Turn] = []
    for action, after in zip(actions, _waited_for(actions), strict=True):
        ready_s = max((actions[before].ended_s for before in after), default=starts_s)
        think_s = max(0.0, action.submitted_s - ready_s)
        turns.append(Turn(think_s, _work(action), after=after, outside=not action.in_environment))
    return Rollout(actions[0].task, tuple(turns), starts_s=starts_s - began_s)


def _waited_for(actions: Sequence[Recorded]) -> list[tuple[int, ...]]:
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


def _work(action: Recorded) -> Work:
    least = action.demand.get(_CORES, 0)
    if not least:
        return Work(cls=action.alike, need=Need.API, seconds=action.run_s)
    amounts = [*range(least, action.most, action.step), action.most]
    fraction = action.parallel_fraction if len(amounts) > 1 else 0.0
    choices = tuple(amount / CORE_MILLI for amount in amounts)
    had = min(max(action.had.get(_CORES, least), least), action.most) / CORE_MILLI
    whole = Work(cls=action.alike, need=Need.CPU, seconds=1.0, parallel_fraction=fraction, choices=choices)
    seconds = action.run_s / whole.duration_s(had)
    return Work(
        cls=action.alike,
        need=Need.CPU,
        seconds=seconds,
        parallel_fraction=fraction,
        choices=choices,
        asked=choices[0],
    )


def _parsed(line: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        raise TraceError(f"line {number} is no JSON") from None
    if not isinstance(found, dict):
        raise TraceError(f"line {number} is no object")
    return found


def _recorded(found: dict[str, Any], number: int) -> Recorded:
    try:
        action = Recorded(**found)
        numbers = (action.submitted_s, action.ended_s, action.run_s, action.most, action.step)
        if any(not isinstance(each, int | float) for each in numbers) or action.step < 1:
            raise TypeError("a time or an amount is no number")
    except TypeError as wrong:
        raise TraceError(f"line {number}: {wrong}") from None
    return action
