"""The load of `tangram bench exec`: commands sent straight to a launcher, or run without one.

Run as `python -m arl_bench.micro.launcher DIRECTORY`. It answers each JSON line on standard input with one JSON line on
standard output. It exits with its launcher at the end of its input.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import EnvironmentSpec, ExecSpec, ExecutionReport
from arl_cpu.contract.launcher_client import LauncherClient

__all__ = ["LauncherDriver"]

PROGRAM = "print(1)"
PYTHON = shutil.which("python3", path=os.defpath) or sys.executable
COMMANDS = {"true": ("true",), "cold": (PYTHON, "-c", PROGRAM)}
SHUTDOWN_TIMEOUT_S = 30.0

ExecFunction = Callable[[int], Awaitable[None]]


class LauncherDriver:
    """A launcher, its environments, and the futures of pending reports."""

    def __init__(self, client: LauncherClient) -> None:
        self._client = client
        self._environments: list[EnvironmentSpec] = []
        self._pending_reports: dict[Fence, asyncio.Future[ExecutionReport]] = {}

    async def collect_reports(self) -> None:
        async for event in self._client.events():
            if isinstance(event, ExecutionReport):
                self._pending_reports.pop(event.fence).set_result(event)
                await self._client.acknowledge([event.fence])

    async def handle(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        match command:
            case {"op": "create", "count": count, "memory_mib": memory_mib, "at_once": at_once}:
                return await self._create(count, memory_mib, at_once)
            case {"op": "run", "way": way, "program": program, "at_once": at_once, "seconds": seconds}:
                run = self._on_host(program) if way == "plain" else self._in_sandbox(program)
                return await _run_for(run, concurrency=at_once, seconds=seconds)
            case {"op": "destroy"}:
                return await self._destroy()
        raise ValueError(f"no such order: {command}")

    async def _create(self, count: int, memory_mib: int, concurrency: int) -> Mapping[str, Any]:
        """Create `count` more environments. Each is ready when its first program has ended."""
        first = len(self._environments)
        self._environments += [_environment_spec(memory_mib) for _ in range(count)]
        left = iter(range(first, first + count))
        run = self._in_sandbox("true")

        async def lane() -> None:
            for number in left:
                await run(number)

        begun = time.monotonic()
        await asyncio.gather(*(lane() for _ in range(concurrency)))
        return {"done": count, "wall_s": time.monotonic() - begun}

    async def _destroy(self) -> Mapping[str, Any]:
        count, begun = len(self._environments), time.monotonic()
        await self._client.destroy([environment.id for environment in self._environments])
        self._environments.clear()
        return {"done": count, "wall_s": time.monotonic() - begun}

    def _in_sandbox(self, program: str) -> ExecFunction:
        argv, source = (None, PROGRAM) if program == "source" else (COMMANDS[program], None)

        async def run(number: int) -> None:
            spec = _exec_spec(self._environments[number], argv, source)
            report = self._pending_reports[spec.fence] = asyncio.get_running_loop().create_future()
            await self._client.start([spec])
            ended = await report
            if ended.outcome != "ok":
                raise RuntimeError(f"{program} ended as {ended.outcome}: {ended.message or ended.stderr.kept!r}")

        return run

    def _on_host(self, program: str) -> ExecFunction:
        argv = COMMANDS[program]

        async def run(_: int) -> None:
            process = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env={})
            await process.communicate()
            if process.returncode != 0:
                raise RuntimeError(f"{program} ended with {process.returncode}")

        return run


async def _run_for(run: ExecFunction, *, concurrency: int, seconds: float) -> Mapping[str, Any]:
    """Run clients for `seconds`. Each starts its next program after the previous one; client N uses environment N."""
    ends_at = time.monotonic() + seconds

    async def lane(number: int) -> int:
        done = 0
        while time.monotonic() < ends_at:
            await run(number)
            done += 1
        return done

    begun = time.monotonic()
    done = sum(await asyncio.gather(*map(lane, range(concurrency))))
    return {"done": done, "wall_s": time.monotonic() - begun}


def _environment_spec(memory_mib: int) -> EnvironmentSpec:
    return EnvironmentSpec(id=uuid4(), scope="trajectory", template="host", memory_mib=memory_mib, disk_mib=4, pids=32)


def _exec_spec(environment: EnvironmentSpec, argv: tuple[str, ...] | None, source: str | None) -> ExecSpec:
    return ExecSpec(
        fence=Fence(uuid4(), 1),
        environment=environment,
        argv=argv,
        source=source,
        env={},
        cwd=None,
        stdin=b"",
        files={},
        fetch=(),
        timeout_s=300.0,
        cpu_milli=1000,
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )


@asynccontextmanager
async def _launcher(directory: Path) -> AsyncIterator[LauncherClient]:
    socket = directory / "launcher.sock"
    variables = {
        "TANGRAM_LAUNCHER_SOCKET": str(socket),
        "TANGRAM_LAUNCHER_DIR": str(directory / "launcher"),
        "TANGRAM_NODE_NAME": "bench",
    }
    command = (sys.executable, "-P", "-m", "arl_cpu.launcher")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, env={**os.environ, **variables}
    )
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"ready\n":
            raise RuntimeError("the launcher did not come up")
        client = LauncherClient(socket)
        await client.connect()
        try:
            yield client
        finally:
            await client.close()
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), SHUTDOWN_TIMEOUT_S)


async def _serve(directory: Path) -> None:
    async with _launcher(directory) as client:
        drive = LauncherDriver(client)
        following = asyncio.create_task(drive.collect_reports())
        serving = asyncio.create_task(_serve_stdin(drive))
        done, left = await asyncio.wait((following, serving), return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        for task in done:
            task.result()  # raises the error that ended it


async def _serve_stdin(driver: LauncherDriver) -> None:
    _write_response({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        _write_response(await driver.handle(json.loads(line)))


def _write_response(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
