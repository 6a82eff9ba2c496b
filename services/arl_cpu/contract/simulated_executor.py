"""An executor without processes: attempts only take time. It is for benchmarks and provides no isolation."""

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

from arl_core.domain.model import Fence
from arl_cpu.contract.environment_access import EnvironmentSocketError, FileOperation, FileOperationError
from arl_cpu.contract.executor import (
    CAPABILITY_NAMES,
    AttemptResize,
    CapturedOutput,
    CapturedStream,
    ExecSpec,
    ExecutionReport,
    ExecutorEvent,
    ExecutorState,
    FeedResult,
    NetworkVersion,
    NodeCapability,
    RunningAttempt,
    first_limit,
)

__all__ = ["SimulatedExecutor"]

MAX_ACKNOWLEDGED_FENCES = 10_000
_ENFORCEMENT = {**dict.fromkeys(CAPABILITY_NAMES, "absent"), "driver": "simulated"}


class SimulatedExecutor:
    """An executor that runs no programs. Every command ends at once, except for two.

    `sleep SECONDS` takes that long with any number of cores. `work SECONDS FRACTION CORES` takes SECONDS on one core.
    By Amdahl's law its parallel FRACTION speeds up on at most CORES cores.
    """

    def __init__(self) -> None:
        self._node_epoch = uuid4()
        self._environments: set[UUID] = set()
        self._busy: set[UUID] = set()
        self._running: dict[Fence, _SimulatedAttempt] = {}
        self._reports: dict[Fence, ExecutionReport] = {}
        self._acknowledged: dict[Fence, None] = {}
        self._events: asyncio.Queue[ExecutorEvent | None] = asyncio.Queue()

    async def connect(self) -> ExecutorState:
        """Return the simulated state; earlier event readers end."""
        self._events = asyncio.Queue()
        return ExecutorState(
            node_epoch=self._node_epoch,
            environments=tuple(self._environments),
            running=tuple(attempt.running_attempt(fence) for fence, attempt in self._running.items()),
            reports=tuple(self._reports.values()),
            capabilities=tuple(
                NodeCapability(
                    name=name, level="absent", mechanism="simulated", reason="the simulated driver runs no programs"
                )
                for name in CAPABILITY_NAMES
            ),
            driver="simulated",
        )

    async def start(self, specs: Sequence[ExecSpec]) -> None:
        """Start attempts; known fences are ignored."""
        for spec in specs:
            if not any(spec.fence in known for known in (self._running, self._reports, self._acknowledged)):
                self._begin(spec)

    async def resize(self, resizes: Sequence[AttemptResize]) -> frozenset[Fence]:
        """Apply the resizes at once and return the fences that run."""
        found = [resize for resize in resizes if resize.fence in self._running]
        for resize in found:
            attempt = self._running[resize.fence]
            if resize.amounts_seq > attempt.allocation.amounts_seq:
                attempt.advance(time.monotonic())
                attempt.allocation = resize
                self._schedule_end(resize.fence, attempt)
        return frozenset(resize.fence for resize in found)

    async def set_shared_cores(self, cores: Sequence[int]) -> None:
        """Do nothing: a simulated attempt uses no cores."""
        del cores

    async def set_networks(self, networks: Mapping[UUID, NetworkVersion]) -> None:
        """Do nothing: no program runs here."""
        del networks

    async def set_critical(self, changes: Mapping[Fence, bool]) -> None:
        """Do nothing: simulated attempts do not share cores."""
        del changes

    async def start_file_operation(self, fence: Fence, environment: UUID, request: Mapping[str, Any]) -> FileOperation:
        del fence, environment, request
        raise FileOperationError("unsupported", "an environment of the simulated driver has no files")

    async def create_socket(self, environment: UUID, family: socket.AddressFamily) -> socket.socket:
        del environment, family
        raise EnvironmentSocketError("not_enforced", "an environment of the simulated driver has no network")

    async def kill(self, fences: Sequence[Fence]) -> None:
        """End attempts as `cancelled`."""
        for fence in fences:
            if fence in self._running:
                self._end(ExecutionReport(fence=fence, outcome="cancelled"))

    async def poll_output(self, fence: Fence, *, stdout: int, stderr: int) -> CapturedOutput | None:
        """Wait for the end of the attempt. A simulated attempt has no output."""
        if (attempt := self._running.get(fence)) is not None:
            await attempt.ended.wait()
        elif fence not in self._reports:
            return None
        return CapturedOutput(
            CapturedStream(b"", 0).chunk_from(stdout), CapturedStream(b"", 0).chunk_from(stderr), ended=True
        )

    async def feed_stdin(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> FeedResult:
        """Accept and discard the input."""
        if (attempt := self._running.get(fence)) is None:
            return FeedResult("absent")
        if not attempt.stdin_open:
            return FeedResult("unopened")
        attempt.fed_bytes = max(attempt.fed_bytes, (attempt.fed_bytes if offset is None else offset) + len(data))
        return FeedResult("taken", attempt.fed_bytes)

    async def destroy(self, environments: Sequence[UUID]) -> None:
        """Remove environments and cancel the attempts in them."""
        gone = frozenset(environments)
        await self.kill([fence for fence, each in self._running.items() if each.environment in gone])
        self._environments -= gone

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        """Forget the reports of these fences."""
        for fence in fences:
            if self._reports.pop(fence, None) is not None:
                self._acknowledged[fence] = None
        while len(self._acknowledged) > MAX_ACKNOWLEDGED_FENCES:
            del self._acknowledged[next(iter(self._acknowledged))]

    async def events(self) -> AsyncIterator[ExecutorEvent]:
        """Yield events until the executor is closed, then raise `ConnectionError`."""
        events = self._events
        while (event := await events.get()) is not None:
            yield event
        raise ConnectionError("the simulated executor was closed")

    async def close(self) -> None:
        self._events.put_nowait(None)

    def _begin(self, spec: ExecSpec) -> None:
        identifier = spec.environment.id
        if identifier in self._busy:
            busy = ExecutionReport(fence=spec.fence, outcome="infra_error", reason="environment_busy")
            self._end(busy)
            return
        if spec.environment.scope == "trajectory":
            self._environments.add(identifier)
        self._busy.add(identifier)
        now = time.monotonic()
        given = AttemptResize(fence=spec.fence, cpu_milli=spec.cpu_milli, cores=spec.cores, amounts_seq=spec.resize_seq)
        attempt = _SimulatedAttempt(spec, _SimulatedProgram.from_spec(spec), given, started_at=now, updated_at=now)
        self._running[spec.fence] = attempt
        self._schedule_end(spec.fence, attempt)

    def _schedule_end(self, fence: Fence, attempt: "_SimulatedAttempt") -> None:
        """Schedule the end of the attempt under its current allocation."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        left_s = attempt.remaining * attempt.program.duration_s(attempt.usable_milli)
        limit_s, reason = first_limit(attempt.spec)
        timeout_s = attempt.started_at + limit_s - attempt.updated_at
        attempt.timer = asyncio.get_running_loop().call_later(
            max(0.0, min(left_s, timeout_s)), self._finish, fence, reason if left_s > timeout_s else None
        )

    def _finish(self, fence: Fence, timeout: str | None) -> None:
        missing = self._running[fence].spec.fetch
        if timeout is not None:
            self._end(ExecutionReport(fence=fence, outcome="user_timeout", reason=timeout, missing_files=missing))
        else:
            self._end(ExecutionReport(fence=fence, outcome="ok", exit_code=0, missing_files=missing))

    def _end(self, report: ExecutionReport) -> None:
        attempt = self._running.pop(report.fence, None)
        if attempt is not None:
            if attempt.timer is not None:
                attempt.timer.cancel()
            attempt.advance(time.monotonic())
            attempt.ended.set()
            self._busy.discard(attempt.environment)
            report = replace(report, run_us=attempt.run_us, counted_us=attempt.run_us, cpu_us=attempt.cpu_us)
        report = replace(report, enforcement=_ENFORCEMENT)
        self._reports[report.fence] = report
        self._events.put_nowait(report)


@dataclass(frozen=True, slots=True)
class _SimulatedProgram:
    """The run time of a simulated program as a function of its cores."""

    seconds: float = 0.0
    """Run time on one core, in seconds."""
    parallel_fraction: float = 0.0
    cores: float = 1.0
    """Largest number of cores that the program can use."""
    uses_cpu: bool = False
    """False if the program only waits, so that cores make no difference."""

    @classmethod
    def from_spec(cls, spec: ExecSpec) -> "_SimulatedProgram":
        """Return the program of a specification; any unknown command ends at once."""
        match spec.argv:
            case ("sleep", seconds):
                return cls(float(seconds))
            case ("work", seconds, fraction, cores):
                return cls(float(seconds), float(fraction), float(cores), uses_cpu=True)
        return cls()

    def duration_s(self, cpu_milli: int) -> float:
        """Return the run time by Amdahl's law (1967). Below one core, it grows in inverse proportion."""
        cores = min(cpu_milli / 1000, self.cores)
        if not self.uses_cpu or self.seconds == 0.0:
            return self.seconds
        if cores < 1.0:
            return self.seconds / cores if cores > 0.0 else math.inf
        return self.seconds * ((1.0 - self.parallel_fraction) + self.parallel_fraction / cores)


@dataclass(slots=True)
class _SimulatedAttempt:
    spec: ExecSpec
    program: _SimulatedProgram
    allocation: AttemptResize
    started_at: float
    updated_at: float
    """Monotonic time at which `remaining` was last computed."""
    remaining: float = 1.0
    """Fraction of the work that remains."""
    timer: asyncio.TimerHandle | None = None
    fed_bytes: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def environment(self) -> UUID:
        return self.spec.environment.id

    @property
    def stdin_open(self) -> bool:
        return self.spec.stdin_open

    @property
    def usable_milli(self) -> int:
        """Milli-cores for the run time. An attempt with shared cores is simulated as if no other one wanted them."""
        if self.spec.sharing is None:
            return self.allocation.cpu_milli
        return self.spec.sharing.limit_milli or max(1000, self.allocation.cpu_milli)

    def advance(self, now: float) -> None:
        """Reduce `remaining` by the work done until `now` under the current allocation."""
        duration_s = self.program.duration_s(self.usable_milli)
        done = (now - self.updated_at) / duration_s if duration_s > 0.0 else 1.0
        self.remaining, self.updated_at = max(0.0, self.remaining - done), now

    @property
    def run_us(self) -> int:
        """Microseconds from the start to `updated_at`."""
        return int((self.updated_at - self.started_at) * 1_000_000)

    @property
    def cpu_us(self) -> int:
        return int(self.program.seconds * (1.0 - self.remaining) * 1_000_000) if self.program.uses_cpu else 0

    def running_attempt(self, fence: Fence) -> RunningAttempt:
        """Return the attempt in the form of the executor's state."""
        return RunningAttempt(
            fence,
            self.environment,
            self.allocation.cores,
            self.allocation.cpu_milli,
            amounts_seq=self.allocation.amounts_seq,
            sharing=self.spec.sharing,
        )
