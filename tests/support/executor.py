"""An executor that a test controls: attempts end only when the test ends them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from arl_core.domain.model import Fence
from arl_cpu.contract.environment_access import EnvironmentSocketError, FileOperation, FileOperationError
from arl_cpu.contract.executor import (
    AttemptResize,
    CapturedOutput,
    EnvironmentLostEvent,
    ExecSpec,
    ExecutionReport,
    ExecutorEvent,
    ExecutorState,
    FeedResult,
    NetworkVersion,
    RunningAttempt,
    UnusedCoresEvent,
)
from support.builders import EPOCH

__all__ = ["FailingWork", "FakeExecutor"]


class FailingWork:
    """A `FileOperation` that fails with an error; with `waits` only when the test releases it."""

    def __init__(self, error: Exception, *, waits: bool = False) -> None:
        self._error = error
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        if not waits:
            self.may_end.set()

    async def read_response(self) -> Mapping[str, Any]:
        self.begun.set()
        await self.may_end.wait()
        raise self._error

    async def send(self, data: bytes) -> None:
        raise self._error

    async def output(self) -> AsyncIterator[bytes]:
        raise self._error
        yield b""

    async def close(self) -> None:
        pass


class FakeExecutor:
    """A fake `arl_cpu.contract.executor.Executor` that outlives managers, as a launcher does."""

    def __init__(self, epoch: UUID = EPOCH) -> None:
        self.state = ExecutorState(
            node_epoch=epoch, environments=(), running=(), reports=(), capabilities=(), driver="fake"
        )
        self.running: dict[Fence, ExecSpec] = {}
        self.started: list[Fence] = []
        self.killed: list[Fence] = []
        self.destroyed: list[UUID] = []
        self.shared_cores: list[tuple[int, ...]] = []
        self.critical: dict[Fence, bool] = {}
        self.networks: dict[UUID, NetworkVersion] = {}
        self.acknowledged: list[Fence] = []
        self.file_operation: FileOperation | None = None
        self.refused_socket: EnvironmentSocketError | None = None
        self.before_start: Callable[[Sequence[ExecSpec]], Awaitable[None]] | None = None
        self.before_resize: Callable[[Sequence[AttemptResize]], Awaitable[None]] | None = None
        self._starts: asyncio.Queue[ExecSpec] = asyncio.Queue()
        self._kills: asyncio.Queue[Fence] = asyncio.Queue()
        self._destroys: asyncio.Queue[UUID] = asyncio.Queue()
        self._acknowledging = asyncio.Event()
        self._events: asyncio.Queue[ExecutorEvent] = asyncio.Queue()

    async def next_start(self, *, timeout_s: float = 5.0) -> ExecSpec:
        return await asyncio.wait_for(self._starts.get(), timeout_s)

    async def next_kill(self) -> Fence:
        return await asyncio.wait_for(self._kills.get(), 5)

    async def next_destroy(self) -> UUID:
        return await asyncio.wait_for(self._destroys.get(), 5)

    async def until_acknowledged(self, fence: Fence, *, times: int = 1) -> None:
        async with asyncio.timeout(10):
            while self.acknowledged.count(fence) < times:
                self._acknowledging.clear()
                await self._acknowledging.wait()

    def finish(self, fence: Fence, outcome: Any = "ok", **changed: Any) -> None:
        self.running.pop(fence, None)
        exit_code = 0 if outcome == "ok" else None
        self._events.put_nowait(
            replace(ExecutionReport(fence=fence, outcome=outcome, exit_code=exit_code, run_us=1000), **changed)
        )

    def report_at_connect(self, fence: Fence, outcome: Any, **changed: Any) -> None:
        """Record the report of an attempt that ended while no manager was connected."""
        self.state = replace(self.state, reports=(replace(ExecutionReport(fence=fence, outcome=outcome), **changed),))

    def lose(self, environment: UUID, reason: str) -> None:
        self._events.put_nowait(EnvironmentLostEvent(id=environment, lost_reason=reason))

    def report_unused(self, cpu_milli: int) -> None:
        self._events.put_nowait(UnusedCoresEvent(cpu_milli))

    async def connect(self) -> ExecutorState:
        running = tuple(
            RunningAttempt(
                fence=fence,
                environment=spec.environment.id,
                cores=spec.cores,
                cpu_milli=spec.cpu_milli,
                amounts_seq=spec.resize_seq,
                sharing=spec.sharing,
            )
            for fence, spec in self.running.items()
        )
        return replace(self.state, running=self.state.running + running)

    async def start(self, specs: Sequence[ExecSpec]) -> None:
        if self.before_start is not None:
            await self.before_start(specs)
        for spec in specs:
            self.started.append(spec.fence)
            self.running[spec.fence] = spec
            self._starts.put_nowait(spec)

    async def resize(self, resizes: Sequence[AttemptResize]) -> frozenset[Fence]:
        if self.before_resize is not None:
            await self.before_resize(resizes)
        found = [resize for resize in resizes if resize.fence in self.running]
        for each in found:
            self.running[each.fence] = replace(
                self.running[each.fence], cpu_milli=each.cpu_milli, cores=each.cores, resize_seq=each.amounts_seq
            )
        return frozenset(resize.fence for resize in found)

    async def set_networks(self, networks: Mapping[UUID, NetworkVersion]) -> None:
        self.networks.update(networks)

    async def set_critical(self, changes: Mapping[Fence, bool]) -> None:
        self.critical.update(changes)

    async def set_shared_cores(self, cores: Sequence[int]) -> None:
        self.shared_cores.append(tuple(cores))

    async def start_file_operation(self, fence: Fence, environment: UUID, request: Mapping[str, Any]) -> FileOperation:
        if self.file_operation is None:
            raise FileOperationError("unsupported", "there are no files here")
        return self.file_operation

    async def create_socket(self, environment: UUID, family: socket.AddressFamily) -> socket.socket:
        if self.refused_socket is not None:
            raise self.refused_socket
        return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    async def kill(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            self.killed.append(fence)
            self._kills.put_nowait(fence)
            if fence in self.running:
                self.finish(fence, "cancelled")

    async def poll_output(self, fence: Fence, *, stdout: int, stderr: int) -> CapturedOutput | None:
        return None

    async def feed_stdin(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> FeedResult:
        return FeedResult("absent")

    async def destroy(self, environments: Sequence[UUID]) -> None:
        for environment in environments:
            self.destroyed.append(environment)
            self._destroys.put_nowait(environment)

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        self.acknowledged.extend(fences)
        self._acknowledging.set()

    async def events(self) -> AsyncIterator[ExecutorEvent]:
        while True:
            yield await self._events.get()

    async def close(self) -> None:
        pass
