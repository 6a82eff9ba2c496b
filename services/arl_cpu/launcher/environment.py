"""One environment: the agent that is its pid 1, its cgroup, and the attempt that runs in it now."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from arl_cpu.executor import EnvironmentSpec, ExecSpec, Report

from . import unsafe_local
from .attempt import Attempt, Capture, Cause
from .cgroups import Group, NoGroup, Tree, Usage
from .channel import Channel, as_file, pack
from .loop import Loop
from .mounts import WORKSPACE
from .processes import Process, all_processes, descendants
from .walls import Setup
from .zygote import Zygote

__all__ = ["Environment", "Host"]

_SETUP_LIMIT_S = 30.0
_KILL_STAGE_S = 1.0
_REMOVE_RETRY_S = 0.05
_STRAYS_RETRY_S = 0.05


@dataclass(kw_only=True)
class Host:
    """What all environments of this launcher share."""

    loop: Loop
    zygote: Zygote
    tree: Tree | None
    in_namespaces: bool
    first_host_id: int | None
    """The first of a range of uids that belong to nobody, one per environment; None where only the own can be used."""
    work_dir: Path
    base_prefix: str
    children: dict[int, "Environment"] = field(default_factory=dict)
    enforcement: Mapping[str, str] = field(default_factory=dict)
    used_numbers: set[int] = field(default_factory=set)

    def take_number(self) -> int:
        """The smallest that no living environment has: names its cgroup, its directory and its uid."""
        number = next(each for each in range(len(self.used_numbers) + 1) if each not in self.used_numbers)
        self.used_numbers.add(number)
        return number

    def end_strays(self) -> None:
        """Kill what lost its agent. Not while agents are being made: until its pid is told one looks like a stray."""
        if self.zygote.is_idle:
            unsafe_local.end_strays(keep={self.zygote.pid, *self.children})
        else:
            self.loop.after(_STRAYS_RETRY_S, self.end_strays)


class Environment:
    """Made at once, ready later. It ends when its pid 1 is reaped: then the kernel has ended all others in it."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        host: Host,
        on_report: Callable[[Report], None],
        on_gone: Callable[["Environment", str | None], None],
    ) -> None:
        self.spec, self._host = spec, host
        self._on_report, self._on_gone = on_report, on_gone
        self.attempt: Attempt | None = None
        self.is_ending = False
        self._is_ready = False
        self._loss: str | None = None
        self._pid: int | None = None
        self._group: Group = NoGroup()
        self._usage: Usage | None = None
        """After the last attempt; nothing is used while the environment is frozen."""
        self._left_open: list[Capture] = []
        self._number = host.take_number()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours)
        host.zygote.make(theirs, self._host_id(), self._made)

    def begin(self, attempt: Attempt) -> None:
        """Run it as soon as the environment is ready. There must be no other."""
        self.attempt = attempt
        if self._pid is not None:
            self._limit_setup(attempt)
        if self._is_ready:
            self._start(attempt)

    def stop(self, cause: Cause) -> None:
        """End the running attempt, in stages: the agent, then pid 1 and the whole environment with it."""
        attempt = self.attempt
        if attempt is None or attempt.cause is not None or attempt.ended is not None:
            return
        attempt.cause = cause
        if self._is_ready:
            self._hasten(attempt.spec)
            self._tell({"op": "kill"})
            attempt.set_timer(self._host.loop, _KILL_STAGE_S, self._kill)
        else:
            self.end()

    def end(self, cause: Cause = "cancelled") -> None:
        """End everything in the environment, a running attempt for that cause; then `on_gone` is called."""
        if self.is_ending:
            return
        self.is_ending = True
        if self.attempt is not None and self.attempt.ended is None:
            self.attempt.cause = self.attempt.cause or cause
        if self._pid is None:
            return
        if self._host.in_namespaces:
            self._kill()
        else:
            # The agent knows its descendants best: it ends them at the end of its channel.
            self._channel.socket.shutdown(socket.SHUT_WR)
            self._host.loop.after(_KILL_STAGE_S, self._kill)

    def died(self) -> None:
        """Pid 1 was reaped."""
        self._pid = None
        self._unwatch_channel()
        if not self._host.in_namespaces:
            self._host.end_strays()
        if self.attempt is not None:
            self._settle(self.attempt, lost=self.spec.scope == "trajectory")
        elif not self.is_ending:
            self._loss = "its first process ended"
        self.is_ending = True
        self._remove()

    def processes(self) -> list[Process]:
        """Every living process of it on the host, its first one included."""
        if self._pid is None:
            return []
        return [*descendants(self._pid), *(each for each in all_processes() if each.pid == self._pid)]

    def _host_id(self) -> int | None:
        if not self._host.in_namespaces:
            return None
        first = self._host.first_host_id
        return os.getuid() if first is None else first + self._number

    def _made(self, pid: int, error: str) -> None:
        if pid == 0:
            self._fail(error)
            return
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            self._fail("the agent died at once")
            return
        self._pid = pid
        self._host.children[pid] = self
        if self.attempt is not None:
            self._limit_setup(self.attempt)
        self._host.loop.watch(self._channel.socket.fileno(), self._hear)
        if self.is_ending:
            self._kill()
            return
        try:
            if self._host.tree is not None:
                self._group = self._host.tree.make(f"e{self._number}")
                self._group.limit(memory_mib=self.spec.memory_mib, pids=self.spec.pids + 1)
                self._group.join(pid)
            self._channel.send(asdict(self._setup()))
        except OSError as failure:
            self._fail(f"cannot set up the environment: {failure}")

    def _limit_setup(self, attempt: Attempt) -> None:
        """From here on; the wait for other environments that are being made is nobody's failure."""
        attempt.set_timer(self._host.loop, _SETUP_LIMIT_S, lambda: self.stop("setup"))

    def _setup(self) -> Setup:
        workspace = WORKSPACE
        if not self._host.in_namespaces:
            workspace = str(self._work_dir())
            os.mkdir(workspace, 0o700)
        return Setup(
            workspace=workspace,
            base_prefix=self._host.base_prefix,
            memory_mib=self.spec.memory_mib,
            disk_mib=self.spec.disk_mib,
            pids=self.spec.pids,
            keeps_processes=self.spec.scope == "trajectory",
            has_cgroup=self._host.tree is not None,
            watches_memory=self._host.in_namespaces and self._host.tree is None,
        )

    def _work_dir(self) -> Path:
        return self._host.work_dir / f"e{self._number}"

    def _hear(self) -> None:
        received = self._channel.receive()
        if received is None:
            self._unwatch_channel()
            self._kill()
            return
        message, files = received
        match message["op"]:
            case "ready":
                self._is_ready = True
                if self.attempt is not None:
                    self._start(self.attempt)
            case "failed":
                self._fail(message["message"])
            case "started" if self.attempt is not None:
                self._started(self.attempt)
            case "file" if self.attempt is not None:
                self.attempt.files[message["path"]] = _content(files[0], message["size"])
            case "exited" if self.attempt is not None:
                self._exited(self.attempt, message)
        for file in files:
            os.close(file)

    def _start(self, attempt: Attempt) -> None:
        spec = attempt.spec
        try:
            self._group.grant(cpu_milli=spec.cpu_milli, cores=spec.cores)
            if self._host.tree is None and self._pid is not None:
                os.sched_setaffinity(self._pid, spec.cores or os.sched_getaffinity(0))
            self._group.thaw()
            attempt.usage_before = self._usage or self._group.usage()
            self._group.reset_peak()
            self._send_start(attempt)
        except ConnectionError:
            self._kill()  # the agent is gone already; its death is told like any other
        except OSError as failure:
            self._fail(f"cannot start the action: {failure}")

    def _send_start(self, attempt: Attempt) -> None:
        spec = attempt.spec
        header = {
            "argv": spec.argv,
            "env": {**_environment_variables(self._host.base_prefix, self._workspace(), spec.cpu_milli), **spec.env},
            "cwd": spec.cwd,
            "fetch": spec.fetch,
            "files": list(spec.files),
        }
        payload = pack(header, [(spec.source or "").encode(errors="surrogatepass"), *spec.files.values()])
        stdin = as_file(spec.stdin) if spec.stdin else os.open("/dev/null", os.O_RDONLY)
        try:
            host_id = self._host_id()
            for capture in attempt.captures:
                if host_id is not None:
                    os.fchown(capture.write_end, host_id, -1)  # so that /dev/stdout can be opened inside
                self._host.loop.watch(capture.read_end, partial(self._read, attempt, capture))
            ends = [capture.write_end for capture in attempt.captures]
            attempt.started_at = time.monotonic()
            self._channel.send({"op": "start"}, [payload, stdin, *ends])
        finally:
            os.close(payload)
            os.close(stdin)
        for capture in attempt.captures:
            capture.close_write_end()

    def _workspace(self) -> str:
        return WORKSPACE if self._host.in_namespaces else str(self._work_dir())

    def _started(self, attempt: Attempt) -> None:
        if attempt.cause is None:
            attempt.set_timer(self._host.loop, attempt.spec.timeout_s, lambda: self.stop("timeout"))

    def _read(self, attempt: Attempt, capture: Capture) -> None:
        if capture.read() == 0:
            self._host.loop.unwatch(capture.read_end)
        elif attempt.is_over_output():
            self.stop("output")

    def _exited(self, attempt: Attempt, message: dict[str, Any]) -> None:
        attempt.ended = message
        attempt.cancel_timer()
        if self.spec.scope == "ephemeral":
            self.end()
        elif self._freeze():
            self._settle(attempt, lost=False)
        else:
            self._kill()

    def _freeze(self) -> bool:
        try:
            return self._group.freeze()
        except OSError:
            return False

    def _settle(self, attempt: Attempt, *, lost: bool) -> None:
        """Report. Nothing of the attempt runs any more: it is dead, or frozen."""
        self.attempt = None
        attempt.cancel_timer()
        attempt.drain()
        self._usage = usage = self._group.usage()
        peak_kib = self._group.peak_kib()
        for capture in attempt.captures:
            self._host.loop.unwatch(capture.read_end)
            if attempt.ended and attempt.ended.get("left_behind") and not lost:
                self._keep_open(capture)
            else:
                capture.close()
        self._on_report(attempt.report(usage, peak_kib, lost=lost, enforcement=self._host.enforcement))

    def _keep_open(self, capture: Capture) -> None:
        """What was left behind may write on; closing the pipe would kill it by SIGPIPE."""
        self._left_open.append(capture)

        def discard() -> None:
            taken = capture.read()
            if taken == 0:
                self._host.loop.unwatch(capture.read_end)
                capture.close()
                self._left_open.remove(capture)
            elif taken and self.attempt is not None:
                self.attempt.others_bytes += taken
                if self.attempt.is_over_output():
                    self.stop("output")

        self._host.loop.watch(capture.read_end, discard)

    def _fail(self, message: str) -> None:
        """Set-up did not work; the environment ends and its first attempt with it."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.cause, attempt.ended = attempt.cause or "setup", {"message": message}
            self._settle(attempt, lost=self._is_ready and self.spec.scope == "trajectory")
        self.end()
        if self._pid is None:
            self._remove()

    def _kill(self) -> None:
        """The kernel's guarantee: with pid 1 everything in its pid namespace dies."""
        if self._pid is None:
            return
        os.kill(self._pid, signal.SIGKILL)
        try:
            self._group.kill()
        except OSError:
            return  # pid 1 is dying in any case

    def _hasten(self, spec: ExecSpec) -> None:
        """The agent shares its quota with what it has to kill."""
        try:
            self._group.grant(cpu_milli=max(spec.cpu_milli, 1000), cores=spec.cores)
        except OSError:
            return  # it is only slower

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            self._channel.send(message)
        except OSError:
            self._kill()

    def _unwatch_channel(self) -> None:
        if self._channel.socket.fileno() >= 0:
            self._host.loop.unwatch(self._channel.socket.fileno())

    def _remove(self) -> None:
        if not self._group.remove():
            self._host.loop.after(_REMOVE_RETRY_S, self._remove)
            return
        self._unwatch_channel()
        self._channel.close()
        for capture in self._left_open:
            self._host.loop.unwatch(capture.read_end)
            capture.close()
        if not self._host.in_namespaces:
            shutil.rmtree(self._work_dir(), ignore_errors=True)
        self._host.used_numbers.discard(self._number)
        self._on_gone(self, self._loss)


def _environment_variables(base_prefix: str, workspace: str, cpu_milli: int) -> dict[str, str]:
    threads = str(max(1, cpu_milli // 1000))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "PYTHON_CPU_COUNT")
    prefix = "" if base_prefix in ("/usr", "/usr/local") else f"{base_prefix}/bin:"
    return {
        "PATH": f"{prefix}/usr/local/bin:/usr/bin:/bin",
        "HOME": workspace,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108  # the sandbox's own
        **dict.fromkeys(names, threads),
    }


def _content(file: int, size: int) -> bytes:
    content = bytearray()
    while len(content) < size and (data := os.pread(file, size - len(content), len(content))):
        content += data
    return bytes(content)
