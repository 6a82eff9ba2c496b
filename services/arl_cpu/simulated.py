"""An executor without processes: attempts only take time. A benchmark instrument, not a sandbox."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

from arl_core.fence import Fence
from arl_cpu.executor import (
    Capability,
    Event,
    ExecSpec,
    ExecutorState,
    Fed,
    Output,
    Report,
    Resize,
    RunningAttempt,
    Stream,
    Work,
    WorkRefused,
)

__all__ = ["SimulatedExecutor"]

REMEMBERED_FENCES = 10_000
_CAPABILITIES = (
    "uid_separation",
    "files",
    "net_isolation",
    "seccomp",
    "kill_tree",
    "cpu_quota",
    "cpuset",
    "memory",
    "pids",
    "freeze",
    "disk_total",
    "oom_events",
)
_ENFORCEMENT = {**dict.fromkeys(_CAPABILITIES, "absent"), "driver": "simulated"}


class SimulatedExecutor:
    """`sleep SECONDS` takes that long, everything else ends at once; nothing is really run."""

    def __init__(self) -> None:
        self._node_epoch = uuid4()
        self._environments: set[UUID] = set()
        self._busy: set[UUID] = set()
        self._running: dict[Fence, _Attempt] = {}
        self._reports: dict[Fence, Report] = {}
        self._acknowledged: dict[Fence, None] = {}
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def connect(self) -> ExecutorState:
        self._events = asyncio.Queue()
        return ExecutorState(
            node_epoch=self._node_epoch,
            environments=tuple(self._environments),
            running=tuple(attempt.running(fence) for fence, attempt in self._running.items()),
            reports=tuple(self._reports.values()),
            capabilities=tuple(
                Capability(name=name, level="absent", mechanism="simulated", reason="nothing is run")
                for name in _CAPABILITIES
            ),
            driver="simulated",
        )

    async def start(self, specs: Sequence[ExecSpec]) -> None:
        for spec in specs:
            if not any(spec.fence in known for known in (self._running, self._reports, self._acknowledged)):
                self._begin(spec)

    async def resize(self, resizes: Sequence[Resize]) -> frozenset[Fence]:
        found = [resize for resize in resizes if resize.fence in self._running]
        for resize in found:
            attempt = self._running[resize.fence]
            if resize.amounts_seq > attempt.given.amounts_seq:
                attempt.given = resize
        return frozenset(resize.fence for resize in found)

    async def work(self, fence: Fence, environment: UUID, asked: Mapping[str, Any]) -> Work:
        del fence, environment, asked
        raise WorkRefused("unsupported", "a simulated environment has no files")

    async def kill(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            if (attempt := self._running.get(fence)) is not None:
                attempt.timer.cancel()
                self._end(Report(fence=fence, outcome="cancelled", run_us=_age_us(attempt)))

    async def follow(self, fence: Fence, *, stdout: int, stderr: int) -> Output | None:
        """There never is any; only the end is told."""
        if (attempt := self._running.get(fence)) is not None:
            await attempt.ended.wait()
        elif fence not in self._reports:
            return None
        return Output(Stream(b"", 0).portion(stdout), Stream(b"", 0).portion(stderr), ended=True)

    async def feed(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> Fed:
        """Taken, and read by nobody."""
        if (attempt := self._running.get(fence)) is None:
            return Fed("absent")
        if not attempt.stdin_open:
            return Fed("unopened")
        attempt.fed_bytes = max(attempt.fed_bytes, (attempt.fed_bytes if offset is None else offset) + len(data))
        return Fed("taken", attempt.fed_bytes)

    async def destroy(self, environments: Sequence[UUID]) -> None:
        gone = frozenset(environments)
        await self.kill([fence for fence, each in self._running.items() if each.environment in gone])
        self._environments -= gone

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            if self._reports.pop(fence, None) is not None:
                self._acknowledged[fence] = None
        while len(self._acknowledged) > REMEMBERED_FENCES:
            del self._acknowledged[next(iter(self._acknowledged))]

    async def events(self) -> AsyncIterator[Event]:
        events = self._events
        while (event := await events.get()) is not None:
            yield event
        raise ConnectionError("the simulated executor was closed")

    async def close(self) -> None:
        self._events.put_nowait(None)

    def _begin(self, spec: ExecSpec) -> None:
        identifier = spec.environment.id
        if identifier in self._busy:
            busy = Report(fence=spec.fence, outcome="infra_error", reason="environment_busy")
            self._end(busy)
            return
        if spec.environment.scope == "trajectory":
            self._environments.add(identifier)
        self._busy.add(identifier)
        wanted_s = _duration_s(spec)
        timer = asyncio.get_running_loop().call_later(min(wanted_s, spec.timeout_s), self._finish, spec, wanted_s)
        given = Resize(fence=spec.fence, cpu_milli=spec.cpu_milli, cores=spec.cores, amounts_seq=spec.amounts_seq)
        self._running[spec.fence] = _Attempt(identifier, time.monotonic(), timer, given, spec.stdin_open)

    def _finish(self, spec: ExecSpec, wanted_s: float) -> None:
        run_us = _age_us(self._running[spec.fence])
        if wanted_s > spec.timeout_s:
            self._end(Report(fence=spec.fence, outcome="user_timeout", run_us=run_us, missing_files=spec.fetch))
        else:
            self._end(Report(fence=spec.fence, outcome="ok", exit_code=0, run_us=run_us, missing_files=spec.fetch))

    def _end(self, report: Report) -> None:
        attempt = self._running.pop(report.fence, None)
        if attempt is not None:
            attempt.ended.set()
            self._busy.discard(attempt.environment)
        report = replace(report, enforcement=_ENFORCEMENT)
        self._reports[report.fence] = report
        self._events.put_nowait(report)


@dataclass(slots=True)
class _Attempt:
    environment: UUID
    started_at: float
    timer: asyncio.TimerHandle
    given: Resize
    stdin_open: bool
    fed_bytes: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def running(self, fence: Fence) -> RunningAttempt:
        return RunningAttempt(
            fence, self.environment, self.given.cores, self.given.cpu_milli, amounts_seq=self.given.amounts_seq
        )


def _age_us(attempt: _Attempt) -> int:
    return int((time.monotonic() - attempt.started_at) * 1_000_000)


def _duration_s(spec: ExecSpec) -> float:
    match spec.argv:
        case ("sleep", seconds):
            return float(seconds)
    return 0.0
