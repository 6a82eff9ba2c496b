"""A launcher in its own directory, and builders for the attempts that run in it."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from arl_core.domain.model import CpuSharing, Fence
from arl_cpu.contract.executor import (
    AttemptResize,
    CapturedStream,
    EnvironmentLostEvent,
    EnvironmentSpec,
    ExecSpec,
    ExecutionReport,
    Executor,
    ExecutorState,
    UnusedCoresEvent,
)
from arl_cpu.contract.launcher_client import LauncherClient
from arl_cpu.launcher.isolation.drivers import DRIVERS
from arl_cpu.launcher.linux.id_ranges import can_map_ranges
from arl_cpu.launcher.linux.syscalls import PR_SET_PDEATHSIG, prctl

END_LIMIT_S = 15
NATIVE = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("cc") is None, reason="the agent in C needs root's cgroups and a compiler"
)

HAS_USERS = pytest.mark.skipif(not can_map_ranges(), reason="environments have one user: root of all ids maps ranges")
ROOT_INSIDE = [
    pytest.param(
        f"namespaces+{agent}@root",
        marks=[pytest.mark.slow, NATIVE if agent == "native" else HAS_USERS],
    )
    for agent in ("native", "python")
]
"""Test parameters for attacks by root inside."""


def sandboxes(slow: Sequence[str] = (), *, both_agents: bool = False) -> list[Any]:
    """Return a test parameter per isolating driver, skipped with a reason if the host lacks a feature.

    After a plus sign stands the agent that is asked for. Of the others `namespaces` uses both, each for what it does
    better, and the rest the one in Python.
    """
    agents = [
        pytest.param("namespaces+python", marks=pytest.mark.slow),
        pytest.param("namespaces+native", marks=[pytest.mark.slow, NATIVE]),
    ]
    return (agents if both_agents else []) + [
        pytest.param(
            driver.name,
            marks=[
                pytest.mark.skipif(bool(driver.problem()), reason=f"{driver.name}: {driver.problem()}"),
                *((pytest.mark.slow,) if driver.name in slow else ()),
            ],
        )
        for driver in DRIVERS.values()
        if driver.is_isolated
    ]


def an_environment(**changes: Any) -> EnvironmentSpec:
    """Return the spec of a trajectory's environment, unless `changes` say otherwise."""
    defaults: dict[str, Any] = {
        "id": uuid4(),
        "scope": "trajectory",
        "template": "host",
        "memory_mib": 128,
        "disk_mib": 32,
        "pids": 48,
    }
    return EnvironmentSpec(**{**defaults, **changes})


def a_command(*argv: str, **changes: Any) -> ExecSpec:
    return _an_attempt(argv=argv, **changes)


def a_program(source: str, **changes: Any) -> ExecSpec:
    return _an_attempt(source=source, **changes)


def a_session_command(session: str, command: str, **changes: Any) -> ExecSpec:
    return _an_attempt(session=session, command=command, **changes)


def _an_attempt(**changes: Any) -> ExecSpec:
    defaults: dict[str, Any] = {
        "fence": Fence(uuid4(), 1),
        "argv": None,
        "source": None,
        "env": {},
        "cwd": None,
        "stdin": b"",
        "files": {},
        "fetch": (),
        "timeout_s": 20.0,
        "cpu_milli": 1000,
        "cores": (),
    }
    if "environment" not in changes:
        changes["environment"] = an_environment(scope="ephemeral")
    return ExecSpec(**{**defaults, **changes})


def shared(guarantee_milli: int = 100, limit_milli: int | None = None, **changes: Any) -> dict[str, Any]:
    """Return the fields of an attempt that shares cores without a declared minimum."""
    sharing = CpuSharing(guarantee_milli=guarantee_milli, limit_milli=limit_milli)
    return {"sharing": sharing, "cpu_milli": 500, **changes}


def a_report(**changes: Any) -> ExecutionReport:
    defaults: dict[str, Any] = {
        "fence": Fence(uuid4(), 2),
        "outcome": "limit_exceeded",
        "reason": "memory",
        "signal": 9,
        "stdout": CapturedStream(b"\xff\0", 7),
        "files": {"a": b"\xfe"},
        "missing_files": ("b",),
        "run_us": 5,
        "leftover_processes": 1,
        "environment_lost": True,
        "enforcement": {"memory": "enforced"},
    }
    return ExecutionReport(**{**defaults, **changes})


class Bench:
    """An executor under test: it starts attempts and returns their reports."""

    def __init__(
        self, executor: Executor, state: ExecutorState, launcher: "Launcher | None" = None, user: str | None = None
    ) -> None:
        self.executor, self.state, self.launcher, self.user = executor, state, launcher, user
        """`user` is the user of attempts that name none."""
        self.lost: asyncio.Queue[EnvironmentLostEvent] = asyncio.Queue()
        self.unused_milli: list[int] = []
        """All reports of unused cores, the last one last."""
        self._waiting: dict[Fence, asyncio.Future[ExecutionReport]] = {}
        self._listening = asyncio.create_task(self._listen())

    @property
    def enforcement(self) -> Mapping[str, str]:
        levels: dict[str, str] = {capability.name: capability.level for capability in self.state.capabilities}
        return {**levels, "driver": self.state.driver}

    async def run(self, spec: ExecSpec) -> ExecutionReport:
        return await (await self.begin(spec))

    async def begin(self, spec: ExecSpec) -> "asyncio.Future[ExecutionReport]":
        """Start the attempt and return a future of its report."""
        if self.user is not None and spec.user is None:
            spec = replace(spec, user=self.user)
        report = self.report_of(spec.fence)
        await self.executor.start([spec])
        return report

    def report_of(self, fence: Fence) -> "asyncio.Future[ExecutionReport]":
        return self._waiting.setdefault(fence, asyncio.get_running_loop().create_future())

    async def resize(self, spec: ExecSpec, cpu_milli: int, *cores: int, seq: int = 1) -> bool:
        """Resize the attempt and return True if the executor confirmed it."""
        resize = AttemptResize(fence=spec.fence, cpu_milli=cpu_milli, cores=cores, amounts_seq=seq)
        return spec.fence in await self.executor.resize([resize])

    async def destroy(self, *environments: UUID) -> None:
        await self.executor.destroy(environments)

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.wait([self._listening])
        await self.executor.close()

    async def _listen(self) -> None:
        async for event in self.executor.events():
            if isinstance(event, ExecutionReport):
                self.report_of(event.fence).set_result(event)
                await self.executor.acknowledge([event.fence])
            elif isinstance(event, UnusedCoresEvent):
                self.unused_milli.append(event.cpu_milli)
            else:
                self.lost.put_nowait(event)


class Launcher:
    """A real launcher process, from its start to its end."""

    def __init__(self, directory: Path, driver: str, prefix: Sequence[str] = (), **variables: str) -> None:
        self.directory, self.socket = directory, directory / "launcher.sock"
        driver, _, agent = driver.partition("+")
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "arl_cpu.launcher"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "TANGRAM_LAUNCHER_SOCKET": str(self.socket),
                "TANGRAM_LAUNCHER_DIR": str(directory / "launcher"),
                "TANGRAM_DRIVER": driver,
                "TANGRAM_NODE_NAME": "test",
                "TANGRAM_SANDBOX_POOL_SIZE": "0",
                "TANGRAM_AGENT": agent,
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_end_with_the_test,
        )
        self.pid = self._process.pid
        self._ended: tuple[int, str] | None = None

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self._process.wait(END_LIMIT_S)
            raise RuntimeError(self.stop()[1])

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop the launcher and return its exit code and error output."""
        if self._ended is None:
            self._process.send_signal(number)
            _, errors = self._process.communicate(timeout=END_LIMIT_S)
            self._ended = self._process.returncode, errors.decode()
        return self._ended


def _end_with_the_test() -> None:
    """End the launcher if the test process dies, so that no attack survives."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@asynccontextmanager
async def a_bench(
    directory: Path, driver: str, *, ready: int = 0, prefix: Sequence[str] = (), **more: str
) -> AsyncIterator[Bench]:
    """Run a launcher with a connected manager; by default it creates no environments in advance.

    After an at sign, `driver` has the user of attempts that name none. `more` are variables of the launcher.
    """
    driver, _, user = driver.partition("@")
    templates = str(directory / "templates")
    variables = {"TANGRAM_SANDBOX_POOL_SIZE": str(ready), "TANGRAM_TEMPLATES_DIR": templates, **more}
    launcher = Launcher(directory, driver, prefix, **variables)
    launcher.wait_until_ready()
    client = LauncherClient(launcher.socket)
    bench = Bench(client, await client.connect(), launcher, user or None)
    try:
        yield bench
    finally:
        await bench.close()
        code, errors = launcher.stop()
        if code != 0 or errors:
            raise RuntimeError(f"the launcher ended with {code}: {errors}")


def agent_of(launcher: Launcher) -> int:
    """Return the agent of the newest environment: the launcher's youngest child."""
    return children_of(launcher)[-1]


def zygote_of(launcher: Launcher) -> int:
    """Return the zygote: the launcher's oldest child."""
    return children_of(launcher)[0]


def children_of(launcher: Launcher) -> list[int]:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def living_descendants(root: int) -> set[int]:
    """Return the processes below `root`, including zombies."""
    parents = {}
    # Not by a glob with the file's name, which raises where a process ends while it looks.
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        parents[int(pid)] = int(rest[1])
    found: set[int] = set()
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def cgroups_of(launcher: Launcher) -> list[Path]:
    """Return the environment cgroups that this launcher, or an earlier one in its directory, created."""
    suffix = zlib.crc32(os.fsencode(launcher.directory / "launcher"))
    # Others make and remove cgroups meanwhile: a walk goes on where a glob would raise.
    walk = os.walk("/sys/fs/cgroup")
    groups = [
        Path(parent, name) for parent, names, _ in walk if parent.endswith(f"/test.{suffix:08x}") for name in names
    ]
    return [each for each in groups if each.name != "file-workers"]  # it lasts as long as the launcher
