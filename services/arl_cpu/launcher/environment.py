"""One environment: the agent that is its pid 1, its cgroup, and the attempt that runs in it now."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from arl_cpu.executor import EnvironmentSpec, Report, Resize
from arl_cpu.templates.store import Opened

from . import interpreter, workdir
from .attempt import Attempt, Capture, Cause
from .cells import Cell, Host, Owner, Pool
from .channel import content_of
from .mounts import WORKSPACE
from .native import AUTO, PYTHON
from .ordering import host_variables, order_for
from .orders import Order
from .processes import Process, pin
from .shells import Shells
from .templating import variables_of
from .walls import Setup

__all__ = ["Environment"]

_SETUP_LIMIT_S = 30.0
_INTERRUPT_STAGE_S, _KILL_STAGE_S = 0.2, 3.0
_FREEZE_LIMIT_S, _FREEZE_LOOK_S = 2.0, 0.0001
_AGENT_PROCESSES, _NATIVE_PROCESSES = 1, 2
"""Beside those of actions: the agent, and the interpreter that the one in C may start."""
_AGENT_MILLI = 1000
"""What the agent itself may use where the attempt runs nothing."""


class Environment:
    """Made at once, ready later. It ends when its pid 1 is reaped: then the kernel has ended all others in it."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        host: Host,
        pool: Pool,
        on_report: Callable[[Report], None],
        on_gone: Callable[["Environment", str | None], None],
        template: Opened | None = None,
        *,
        runs_source: bool = False,
    ) -> None:
        self.spec, self._host, self._template = spec, host, template
        self._on_report, self._on_gone = on_report, on_gone
        self.attempt: Attempt | None = None
        self.is_ending = False
        self._is_ready = False
        self._loss: str | None = None
        self._variables: dict[str, str] = {}
        """Of every action in it."""
        self._left_open: list[Capture] = []
        self._has_left_behind = False
        # For a single source the agent in Python forks itself, where the one in C would have to start an interpreter.
        forks_itself = runs_source and spec.scope == "ephemeral" and template is None and host.agents == AUTO
        self._is_native = host.agents != PYTHON and not forks_itself
        self._shells = Shells(host.loop, self._send_order, lambda: self._tell({"op": "finish"}), self._show)
        self._pool = pool
        self._take(pool.take if template is None else partial(pool.take_new, template=template))

    @property
    def idle_cell(self) -> tuple[Cell, str] | None:
        """Where it lives, and its working directory there, while nothing runs in it."""
        return (self._cell, self._workspace()) if self._is_ready and not (self.attempt or self.is_ending) else None

    def begin(self, attempt: Attempt) -> None:
        """Run it as soon as the environment is ready. There must be no other."""
        self.attempt = attempt
        if self._cell.pid is not None:
            self._limit_setup(attempt)
        if self._is_ready:
            self._start(attempt)

    def stop(self, cause: Cause) -> None:
        """End the running attempt, in stages: the agent, then pid 1 and the whole environment with it."""
        attempt = self.attempt
        if attempt is None or attempt.cause is not None or attempt.ended is not None:
            return
        attempt.cause = cause
        if not self._is_ready:
            self.end()
        elif self._shells.interrupt():
            attempt.set_timer(self._host.loop, _INTERRUPT_STAGE_S, partial(self._kill, attempt))
        else:
            self._kill(attempt)

    def _kill(self, attempt: Attempt) -> None:
        self._hasten(attempt.given)
        self._tell({"op": "kill"})
        attempt.set_timer(self._host.loop, _KILL_STAGE_S, self._cell.kill)
        self._shells.killed()

    def resize(self, resize: Resize) -> bool:
        """Whether the attempt has this now, or a later one. One that has not started yet starts with it.

        One that ended or is being ended keeps what it has; so does one for which it could not be written.
        """
        attempt = self.attempt
        if attempt is None or attempt.ended is not None or attempt.cause is not None:
            return False
        before = attempt.given
        if resize.amounts_seq <= before.amounts_seq:
            return True
        try:
            if attempt.started_at is not None:
                self._allow(resize, of_all=True)
        except OSError:
            with suppress(OSError):
                self._allow(before, of_all=True)
            return False
        attempt.given = resize
        return True

    def end(self, cause: Cause = "cancelled") -> None:
        """End everything in the environment, a running attempt for that cause; then `on_gone` is called."""
        if self.is_ending:
            return
        self.is_ending = True
        if self.attempt is not None and self.attempt.ended is None:
            self.attempt.cause = self.attempt.cause or cause
        if self._cell.pid is None:
            return
        if self._host.driver.ends_with_first or self._host.tree is not None:
            self._cell.kill()
        else:
            # The agent knows its descendants best: it ends them at the end of its channel.
            self._cell.channel.socket.shutdown(socket.SHUT_WR)
            self._host.loop.after(_KILL_STAGE_S, self._cell.kill)

    def died(self) -> None:
        """Pid 1 was reaped."""
        if self._was_ready_made and not self._is_ready and not self.is_ending:
            # It died in the pool, before it could be told to anybody; nothing of the attempt has run.
            dead = self._cell
            try:
                self._take(self._pool.take_new)
            except OSError as failure:
                self._loss = f"cannot make the environment: {failure}"
            else:
                dead.remove(lambda: None)
                return
        if self.attempt is not None:
            self._settle(self.attempt, lost=self.spec.scope == "trajectory")
        elif not self.is_ending:
            self._loss = "its first process ended"
        self.is_ending = True
        self._cell.remove(self._removed)

    def _take(self, take: Callable[[Owner], Cell]) -> None:
        self._cell = take(self)
        self._was_ready_made = self._cell.is_prepared
        if self._was_ready_made:
            self.prepared()

    def processes(self) -> list[Process]:
        """Every living process of it on the host, its first one included."""
        return self._cell.processes()

    def made(self) -> None:
        """The agent lives; from here on set-up takes its own time."""
        if self.attempt is not None:
            self._limit_setup(self.attempt)
        if self.is_ending:
            self._cell.kill()

    def prepared(self) -> None:
        """The cell stands: give it its sizes and the last walls."""
        try:
            self._cell.group.limit(
                memory_mib=self.spec.memory_mib,
                pids=self.spec.pids + (_NATIVE_PROCESSES if self._is_native else _AGENT_PROCESSES),
            )
            self._cell.channel.send({"op": "bind", **asdict(self._setup())})
        except ConnectionError:
            self._cell.kill()  # the agent is gone already; its death is told like any other
        except OSError as failure:
            self.failed(f"cannot set up the environment: {failure}")

    def _limit_setup(self, attempt: Attempt) -> None:
        """From here on; the wait for other environments that are being made is nobody's failure."""
        attempt.set_timer(self._host.loop, _SETUP_LIMIT_S, lambda: self.stop("setup"))

    def _setup(self) -> Setup:
        if not self._host.driver.ends_with_first:
            workdir.make(self._cell.work_dir, self._cell.own_uid)
        return Setup(
            workspace=self._workspace(),
            is_host=self._template is None,
            base_prefix=self._host.base_prefix,
            memory_mib=self.spec.memory_mib,
            disk_mib=self.spec.disk_mib,
            pids=self.spec.pids,
            keeps_processes=self.spec.scope == "trajectory",
            has_cgroup=self._host.tree is not None,
            watches_memory=self._host.driver.has_walls and self._host.tree is None,
            host_id=self._cell.own_uid,
            watches_files=self._host.driver.name == "landlock",
            is_native=self._is_native,
        )

    def heard(self, message: dict[str, Any], files: list[int]) -> None:
        """What the agent tells of itself and of the attempt."""
        match message["op"]:
            case "ready":
                self._is_ready = True
                if self.attempt is not None:
                    self._start(self.attempt)
            case "started" if self.attempt is not None:
                self._started(self.attempt)
            case "file" if self.attempt is not None:
                path = self.attempt.spec.fetch[message["number"]]
                self.attempt.files[path] = content_of(files[0], message["size"])
            case "exited" if self.attempt is not None:
                self._exited(self.attempt, message)

    def _start(self, attempt: Attempt) -> None:
        try:
            self._allow(attempt.given, of_all=self._has_left_behind)
            self._cell.group.thaw()
            attempt.usage_before = self._cell.usage or self._cell.group.usage()
            self._cell.group.reset_peak()
            self._send_start(attempt)
        except ConnectionError:
            self._cell.kill()  # the agent is gone already; its death is told like any other
        except OSError as failure:
            self.failed(f"cannot start the action: {failure}")
        except ValueError as mistake:
            self._exited(attempt, {"refused": str(mistake)})

    def _allow(self, given: Resize, *, of_all: bool) -> None:
        """Quota and cores; without a cgroup an affinity, of all processes or of the first, which hands it down."""
        self._cell.group.grant(cpu_milli=given.cpu_milli or _AGENT_MILLI, cores=given.cores)
        if self._host.tree is not None or self._cell.pid is None:
            return
        cores = given.cores or os.sched_getaffinity(0)
        if of_all:
            pin(self.processes, cores)
        else:
            os.sched_setaffinity(self._cell.pid, cores)

    def _send_start(self, attempt: Attempt) -> None:
        spec = attempt.spec
        if spec.argv is None and spec.source is None and spec.env:
            self._variables = dict(spec.env)
        order = order_for(spec, self._workspace(), self._given_variables(), self._variables)
        host_id = self._cell.host_id
        attempt.started_at = time.monotonic()
        if spec.session is not None:
            self._has_left_behind = True
            self._shells.begin(attempt, order, host_id)
            return
        stdin = attempt.stdin(self._host.loop, host_id)
        try:
            for capture in attempt.captures:
                if host_id is not None:
                    os.fchown(capture.write_end, host_id, -1)  # so that /dev/stdout can be opened inside
                self._host.loop.watch(capture.read_end, partial(self._read, attempt, capture))
            ends = [capture.write_end for capture in attempt.captures]
            self._send_order(order, [stdin, *ends])
        finally:
            os.close(stdin)
        for capture in attempt.captures:
            capture.close_write_end()

    def _send_order(self, order: Order, files: Sequence[int]) -> None:
        payload = order.pack()
        try:
            self._cell.channel.send({"op": "start"}, [payload, *files])
        finally:
            os.close(payload)

    def _given_variables(self) -> Mapping[str, str]:
        workspace = self._workspace()
        if self._template is not None:
            return variables_of(self._template, workspace)
        return host_variables(self._host.base_prefix, workspace)

    def _workspace(self) -> str:
        if self._template is not None and self._template.template.workdir is not None:
            return self._template.template.workdir
        return WORKSPACE if self._host.driver.ends_with_first else workdir.workspace_in(self._cell.work_dir)

    def _started(self, attempt: Attempt) -> None:
        if attempt.cause is None:
            attempt.set_timer(self._host.loop, attempt.time_left_s(), lambda: self.stop("timeout"))
        self._shells.started()

    def _show(self, data: bytes) -> None:
        """What a session's terminal shows."""
        if self.attempt is not None and self.attempt.took(data):
            self.stop("output")

    def _read(self, attempt: Attempt, capture: Capture) -> None:
        if attempt.read(capture) == 0:
            self._host.loop.unwatch(capture.read_end)
        elif attempt.is_over_output():
            self.stop("output")

    def _exited(self, attempt: Attempt, message: dict[str, Any]) -> None:
        if self._shells.goes_on(message):
            return
        if message.pop("no_interpreter", False):
            message["refused"] = interpreter.MISSING
        attempt.ended = message
        attempt.cancel_timer()
        if self.spec.scope == "ephemeral":
            self.end()
        else:
            self._settle_once_frozen(attempt, time.monotonic() + _FREEZE_LIMIT_S)

    def _settle_once_frozen(self, attempt: Attempt, deadline: float) -> None:
        """A process freezes when it next runs, and until then others are served."""
        if self.attempt is not attempt:
            return  # its environment died meanwhile, and that was told
        if self._cell.freeze():
            self._settle(attempt, lost=False)
        elif time.monotonic() > deadline:
            self._cell.kill()
        else:
            time.sleep(_FREEZE_LOOK_S)  # the loop's own timers are ten times as coarse
            self._host.loop.after(0, partial(self._settle_once_frozen, attempt, deadline))

    def _settle(self, attempt: Attempt, *, lost: bool) -> None:
        """Report. Nothing of the attempt runs any more: it is dead, or frozen."""
        self.attempt = None
        attempt.cancel_timer()
        attempt.finish()
        usage, peak_kib = attempt.usage_before, 0
        with suppress(OSError):  # with no file left to open, what it used is not known, and its end is told
            self._cell.usage = usage = self._cell.group.usage()
            peak_kib = self._cell.group.peak_kib()
        self._has_left_behind |= bool(attempt.ended and attempt.ended.get("left_behind"))
        for capture in attempt.captures:
            if not capture.is_open:
                continue
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

    def failed(self, message: str) -> None:
        """Set-up did not work; the environment ends and its first attempt with it."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.cause, attempt.ended = attempt.cause or "setup", {"message": message}
            self._settle(attempt, lost=self._is_ready and self.spec.scope == "trajectory")
        self.end()
        if self._cell.pid is None:
            self._cell.remove(self._removed)

    def _hasten(self, given: Resize) -> None:
        """The agent shares its quota with what it has to kill."""
        with suppress(OSError):  # it is only slower
            self._cell.group.grant(cpu_milli=max(given.cpu_milli, 1000), cores=given.cores)

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            self._cell.channel.send(message)
        except OSError:
            self._cell.kill()

    def _removed(self) -> None:
        self._shells.close()
        for capture in self._left_open:
            self._host.loop.unwatch(capture.read_end)
            capture.close()
        if self._template is not None:
            self._template.close()
        self._on_gone(self, self._loss)
