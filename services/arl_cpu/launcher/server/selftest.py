"""A self-test of the isolation that this node enforces. It tests by attempts, not by kernel versions."""

import json
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import (
    CAPABILITY_NAMES,
    EnvironmentSpec,
    ExecSpec,
    ExecutionReport,
    ExecutorEvent,
    NodeCapability,
)
from arl_cpu.contract.verifier_packages import PLACE, math_capability, package_directory
from arl_cpu.launcher.sandbox.sandbox import SandboxPool
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost
from arl_cpu.launcher.server.launcher_node import LauncherNode

__all__ = ["DriverUnavailable", "capabilities_without_isolation", "run_selftest"]

_MEMORY_MIB, _DISK_MIB, _PIDS, _CPU_MILLI = 48, 4, 12, 200
_LIMIT_S = 20.0
"""Seconds for each attempt. With 5, a busy machine failed the test and silently got a weaker driver."""
_NO_PID = 1 << 30
_NEEDS_CGROUP = "run the launcher as root, or in a systemd unit with Delegate=cpu cpuset memory pids"

_PROBE_SOURCE = """
import importlib.util, json, os, socket, sys, time

def refused(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False

def fill():
    if not DISK_MIB:
        return
    with open("filler", "wb", 0) as file:
        for _ in range(DISK_MIB * 2):
            file.write(bytes(1 << 20))

def forks():
    made = []
    try:
        for _ in range(PIDS * 2):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
            made.append(pid)
    except OSError:
        pass
    for pid in made:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return len(made)

def burnt_share():
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() < began + 0.15:
        pass
    return (time.process_time() - used) / (time.monotonic() - began)

def has_math():
    sys.path.extend(PACKAGES)
    return all(importlib.util.find_spec(name) for name in ("math_verify", "sympy", "latex2sympy2_extended"))

found = {
    "share": burnt_share(),
    "files": all(refused(lambda: open(path)) for path in (CANARY, OPEN_CANARY, "/etc/shadow", "/proc/1/environ"))
        and refused(lambda: open("/usr/x", "w")) and refused(lambda: open("/proc/sys/kernel/domainname", "w")),
    "net": refused(lambda: socket.create_connection(("127.0.0.1", PORT), 0.2))
        and refused(lambda: socket.create_connection(("192.0.2.1", 9), 0.2))
        and refused(lambda: socket.socket(socket.AF_UNIX).connect(ABSTRACT)),
    "signals": refused(lambda: os.kill(OUTSIDE, 0)),
    "seccomp": refused(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)),
    "affinity": sorted(os.sched_getaffinity(0)),
    "widened": not refused(lambda: os.sched_setaffinity(0, range(CORES))) and len(os.sched_getaffinity(0)),
    "math": has_math(),
    "forks": forks(),
    "disk": refused(fill),
}
if DISK_MIB:
    os.unlink("filler")
print(json.dumps(found))
"""
_MEMORY_HOG = f"""
hog = [bytes([1]) * (1 << 20) for _ in range({_MEMORY_MIB * 2})]
"""
_FORK_FLOOD = f"""
import os, time
for _ in range({_PIDS * 2}):
    if os.fork() == 0:
        time.sleep(60)
time.sleep(3)
"""
_DISK_FLOOD = f"""
import time
for number in range({_DISK_MIB * 2}):
    with open(str(number), "wb") as file:
        file.write(bytes(1 << 20))
time.sleep(3)
"""
_SPINNER = """
import os
if os.fork() == 0:
    os.setsid()
    while True:
        pass
"""

CapabilityLevel = Literal["enforced", "best_effort", "absent"]


_REQUIRED = frozenset({"files", "net_isolation", "seccomp", "kill_tree"})
"""Capabilities that every sandbox requires. Limits of CPU, memory, pids and disk are required only on request."""


_FALLBACKS = {"kill_tree": "a search for descendants", "cpu_weight": "nice"}
"""Mechanisms of the unsafe-local driver, best effort."""


class DriverUnavailable(Exception):
    """A driver that cannot create an environment on this host. The message gives the reason."""


def capabilities_without_isolation() -> tuple[NodeCapability, ...]:
    """Return the capabilities of the unsafe-local driver."""
    reason, fix = "the unsafe-local driver provides no isolation", "set TANGRAM_DRIVER=namespaces"
    return tuple(
        NodeCapability(name=name, level="best_effort", mechanism=_FALLBACKS[name], reason=reason, fix=fix)
        if name in _FALLBACKS
        else NodeCapability(name=name, level="absent", mechanism="none", reason=reason, fix=fix)
        for name in CAPABILITY_NAMES
    )


def run_selftest(host: SandboxHost, directory: Path) -> tuple[NodeCapability, ...]:
    """Create an environment, attack it and end it. Raises DriverUnavailable if that fails or isolation is missing."""
    trial = _SelfTest(host)
    with (
        tempfile.NamedTemporaryFile(dir=directory) as canary,
        tempfile.NamedTemporaryFile() as open_canary,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        os.fchmod(canary.fileno(), 0o644)
        os.fchmod(open_canary.fileno(), 0o644)
        abstract.bind(f"\0tangram-{uuid4()}")
        abstract.listen()
        values = {
            "OPEN_CANARY": repr(open_canary.name),
            "CANARY": repr(canary.name),
            "PORT": listener.getsockname()[1],
            "ABSTRACT": repr(abstract.getsockname()),
            # In a pid namespace any small number may be a valid process, so use an impossible one.
            "OUTSIDE": _NO_PID if host.driver.dies_with_init else os.getpid(),
            "PIDS": 0 if trial.counts_processes else _PIDS,
            "DISK_MIB": 0 if trial.counts_files else _DISK_MIB,
            "CORES": os.cpu_count(),
            "PACKAGES": [PLACE, package_directory() or PLACE],
        }
        source = _PROBE_SOURCE
        for name, value in values.items():
            source = source.replace(name, str(value))
        try:
            findings = trial.collect_findings(source)
        finally:
            trial.end()
    capabilities = _capabilities(host, findings)
    open_walls = [each.name for each in capabilities if each.name in _REQUIRED and each.level == "absent"]
    if open_walls:
        raise DriverUnavailable(f"the self-test broke the isolation: {', '.join(open_walls)}")
    return capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class _SelfTestFindings:
    probe: dict[str, Any]
    cores: Sequence[int]
    has_own_uid: bool
    memory: ExecutionReport
    is_frozen: bool
    is_all_killed: bool
    is_weighted: bool
    """True if the weight of its group can be set."""
    process_flood: ExecutionReport | None
    """Outcome of too many processes, if polling counts them; otherwise None. `disk_flood`: outcome
    of too many files.
    """
    disk_flood: ExecutionReport | None


class _SelfTest:
    """An environment on a separate node. Every call runs an attempt to its end."""

    def __init__(self, host: SandboxHost) -> None:
        self._host = host
        self._reports: list[ExecutorEvent] = []
        self._node = LauncherNode(host, SandboxPool(host, 0), self._reports.append)
        self._cores = sorted(os.sched_getaffinity(0))[:1]
        self.counts_files = not host.driver.dies_with_init
        self.counts_processes = self.counts_files and host.cgroup_tree is None and host.first_host_id is None
        self._environment = EnvironmentSpec(
            id=uuid4(),
            scope="trajectory",
            template="host",
            memory_mib=_MEMORY_MIB,
            disk_mib=_DISK_MIB,
            pids=_PIDS,
        )

    def collect_findings(self, source: str) -> _SelfTestFindings:
        """Run the source and attacks. Return what they could do."""
        report = self._run(source)
        if report.outcome != "ok":
            raise DriverUnavailable(report.message or report.stderr.data.decode(errors="replace") or report.outcome)
        inside = json.loads(report.stdout.data)
        uid = self._host_uid()
        crowd = self._run(_FORK_FLOOD) if self.counts_processes else None
        memory = self._run(_MEMORY_HOG)
        left = self._run(_SPINNER)
        processes = self._node.processes(self._environment.id)
        # The last process is the agent. It may still be busy after its report.
        is_frozen = left.leftover_processes == 1 and self._are_frozen([each.pid for each in processes[:-1]])
        filler = self._run(_DISK_FLOOD) if self.counts_files else None
        self.end()
        alive = [each.pid for each in processes if os.path.exists(f"/proc/{each.pid}")]
        return _SelfTestFindings(
            probe=inside,
            cores=self._cores,
            has_own_uid=uid not in (0, os.geteuid()),
            memory=memory,
            is_frozen=is_frozen,
            is_all_killed=not alive,
            is_weighted=self._is_weighted(),
            process_flood=crowd,
            disk_flood=filler,
        )

    def _is_weighted(self) -> bool:
        """Return True if a group of the tree accepts a weight."""
        if self._host.cgroup_tree is None:
            return True
        group = self._host.cgroup_tree.make("weight-test")
        try:
            group.set_weight(self._host.cgroup_tree.weights.of_cores(0.5))
        except OSError:
            return False
        finally:
            group.remove()
        return True

    def end(self) -> None:
        """End the environment of the test."""
        gone: list[bool] = []
        self._node.end_all(lambda: gone.append(True))
        self._host.loop.run_until(lambda: bool(gone), _LIMIT_S)

    def _run(self, source: str) -> ExecutionReport:
        self._reports.clear()
        spec = ExecSpec(
            fence=Fence(uuid4(), 1),
            environment=self._environment,
            argv=None,
            source=source,
            env={},
            cwd=None,
            stdin=b"",
            files={},
            fetch=(),
            timeout_s=_LIMIT_S,
            cpu_milli=_CPU_MILLI if source is not _MEMORY_HOG else 1000,
            cores=tuple(self._cores),
        )
        self._node.start([spec])
        self._host.loop.run_until(lambda: bool(self._reports), 2 * _LIMIT_S)
        for event in self._reports:
            if isinstance(event, ExecutionReport):
                return event
        raise DriverUnavailable("an environment did not respond in time")

    def _host_uid(self) -> int:
        first = self._node.processes(self._environment.id)[-1]
        for line in Path(f"/proc/{first.pid}/status").read_text().splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
        raise DriverUnavailable("an environment has no uid")

    def _are_frozen(self, pids: Sequence[int]) -> bool:
        before = [_cpu_ticks(pid) for pid in pids]
        time.sleep(0.03)
        return before == [_cpu_ticks(pid) for pid in pids]


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0])


def _capabilities(host: SandboxHost, findings: _SelfTestFindings) -> tuple[NodeCapability, ...]:
    group = f"cgroup {host.cgroup_tree.version}" if host.cgroup_tree is not None else ""
    inside = findings.probe
    unverified = "written for cgroup v2 but not verified on many hosts" if group == "cgroup v2" else ""
    pinned = inside["affinity"] == list(findings.cores) and inside["widened"] in (False, len(findings.cores))
    memory_seen = _ended_by(findings.memory, "memory")
    few = _ended_by(findings.process_flood, "pids") if findings.process_flood is not None else inside["forks"] <= _PIDS
    bounded = _ended_by(findings.disk_flood, "disk") if findings.disk_flood is not None else inside["disk"]
    how = host.driver.mechanisms
    return (
        _uid_separation(host, findings),
        _file_isolation(host, inside["files"]),
        _isolation_capability("net_isolation", inside["net"], how["net_isolation"]),
        _isolation_capability("seccomp", inside["seccomp"], "seccomp filter"),
        _isolation_capability("kill_tree", findings.is_all_killed and inside["signals"], how["kill_tree"]),
        _limit_capability("cpu_quota", group, inside["share"] < 0.5, "", unverified),
        _limit_capability("cpuset", group, pinned, "affinity, fixed by seccomp", unverified),
        _limit_capability("cpu_weight", group, findings.is_weighted, "nice", unverified),
        _limit_capability("memory", group, memory_seen, "a polled sum of resident memory", unverified),
        _limit_capability("pids", group, few, how["pids"], unverified),
        _limit_capability("freeze", group, findings.is_frozen, "SIGSTOP", unverified),
        _disk_total(host, bounded),
        _limit_capability("oom_events", group, memory_seen, "", unverified),
        math_capability(is_installed=inside["math"]),
    )


def _ended_by(report: ExecutionReport, limit: str) -> bool:
    return (report.outcome, report.reason) == ("limit_exceeded", limit)


def _file_isolation(host: SandboxHost, works: bool) -> NodeCapability:
    if not works or host.driver.dies_with_init:
        return _isolation_capability("files", works, host.driver.mechanisms["files"])
    shared = "" if host.first_host_id is not None else "; actions cannot chmod, chown or touch by path"
    return NodeCapability(
        name="files",
        level="best_effort",
        mechanism=host.driver.mechanisms["files"],
        reason="the contents of files and directories are protected, but the existence, size and owner of a path are"
        f" visible{shared}",
        fix="use the namespaces driver",
    )


def _disk_total(host: SandboxHost, works: bool) -> NodeCapability:
    if not works or host.driver.dies_with_init:
        return _isolation_capability("disk_total", works, host.driver.mechanisms["disk_total"])
    return NodeCapability(
        name="disk_total",
        level="best_effort",
        mechanism=host.driver.mechanisms["disk_total"],
        reason="the environment has no file system of its own; an excess is detected late, after more data may have"
        " been written",
        fix="use the namespaces driver",
    )


def _uid_separation(host: SandboxHost, findings: _SelfTestFindings) -> NodeCapability:
    if findings.has_own_uid:
        return NodeCapability(name="uid_separation", level="enforced", mechanism="a host uid per environment")
    return NodeCapability(
        name="uid_separation",
        level="best_effort",
        mechanism="user namespace" if host.driver.dies_with_init else "a Landlock scope per environment",
        reason="all environments have the uid of this user on the host",
        fix="run the launcher as root",
    )


def _isolation_capability(name: str, works: bool, mechanism: str) -> NodeCapability:
    if works:
        return NodeCapability(name=name, level="enforced", mechanism=mechanism)
    return NodeCapability(name=name, level="absent", mechanism="none", reason="the self-test failed")


def _limit_capability(name: str, group: str, works: bool, fallback: str, unverified: str) -> NodeCapability:
    """Return `enforced` if a cgroup passed the test. Without a cgroup, return `best_effort` if the fallback passed."""
    if group and works:
        return NodeCapability(name=name, level="enforced", mechanism=group, reason=unverified)
    if not group and works and fallback:
        reason = "no writable cgroup"
        return NodeCapability(name=name, level="best_effort", mechanism=fallback, reason=reason, fix=_NEEDS_CGROUP)
    reason = "the self-test failed" if group else "no writable cgroup"
    return NodeCapability(name=name, level="absent", mechanism="none", reason=reason, fix=_NEEDS_CGROUP)
