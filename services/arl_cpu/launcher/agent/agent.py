"""Pid 1 of an environment: it isolates itself, then runs one action at a time and controls its processes.

It has no secrets, because an action may be a fork of it. It ends when its channel ends.
"""

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import time
from typing import NoReturn

from arl_cpu.launcher.agent.agent_action import (
    AgentAction,
    children_cpu_us,
    is_withheld,
    joined,
    release_tracee,
)
from arl_cpu.launcher.agent.agent_process import (
    CHANNEL_FD,
    NATIVE_FD,
    OOM_SCORE_FD,
    close_other_files,
    disable_imports,
    open_oom_score,
    redirect_standard_files_to_null,
)
from arl_cpu.launcher.agent.agent_request import AgentRequest
from arl_cpu.launcher.agent.memory_watch import MemoryWatch
from arl_cpu.launcher.agent.process_spawn import give_files, spawn_by_fork, spawn_process, spawn_session, with_home
from arl_cpu.launcher.files import workspace
from arl_cpu.launcher.isolation.isolation import AgentSetup, Isolation, TemplateLayers
from arl_cpu.launcher.isolation.users import SandboxUser, acting_as, find_user
from arl_cpu.launcher.linux.packet_channel import PacketChannel
from arl_cpu.launcher.linux.processes import resume, signal_each

__all__ = ["run_agent"]

_POLL_S = 0.1
_KILL_GRACE_S = 0.2
_KILL_TIMEOUT_S = 2.5
_KILL_POLL_S = 0.0005
_SHELL_END_LIMIT_S = 0.5
_MIB = 1 << 20
_PEAK_MARGIN_KIB = 1024
_MAX_MESSAGE = 2000
_OOM_SCORE_FIRST, _OOM_SCORE_LAST = b"1000", b"0"
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def run_agent(agent_end: int, isolation: Isolation, native: int | None = None) -> NoReturn:
    """Run as the agent on this end of a channel, or as `native` after the isolation. Never returns to the caller."""
    try:
        close_other_files(agent_end, native)
        redirect_standard_files_to_null()
        channel = PacketChannel(socket.socket(fileno=CHANNEL_FD))
        _prepare_and_serve(channel, isolation)
    finally:
        os._exit(1)


def _prepare_and_serve(channel: PacketChannel, isolation: Isolation) -> None:
    try:
        if (received := channel.receive()) is None:
            return
        message, files = received
        os.setsid()
        oom_score = open_oom_score()
        isolation.prepare(message["base_prefix"], TemplateLayers.from_message(message, files))
    except OSError as error:
        _send_failure(channel, error)
        return
    channel.send({"op": "prepared"})
    if (received := channel.receive()) is not None:
        setup = {key: value for key, value in received[0].items() if key != "op"}
        serve(channel, isolation, AgentSetup.from_message(setup), oom_score)


def serve(channel: PacketChannel, isolation: Isolation, setup: AgentSetup, oom_score: int) -> None:
    """Complete the isolation and serve requests until the channel ends."""
    try:
        isolation.apply_setup(setup)
        if setup.is_native:
            _exec_native_agent(isolation, setup, oom_score)
        disable_imports()
        agent = _SandboxAgent(channel, isolation, setup, oom_score)
    except OSError as error:
        _send_failure(channel, error)
        return
    try:
        channel.send({"op": "ready"})
        agent.serve()
    finally:  # the launcher may end during a message, and no other process can kill these
        isolation.signal_all(signal.SIGKILL)


def _exec_native_agent(isolation: Isolation, setup: AgentSetup, oom_score: int) -> NoReturn:
    program = os.dup(NATIVE_FD)
    os.dup2(oom_score, OOM_SCORE_FD)
    os.set_inheritable(CHANNEL_FD, True)
    kept = "keep" if setup.keeps_processes else "sweep"
    os.execve(program, ["agent", setup.workspace, isolation.write_area, kept, setup.home], {})  # noqa: S606


def _send_failure(channel: PacketChannel, error: OSError) -> None:
    channel.send({"op": "failed", "message": f"{error.strerror or error}: {error.filename}"})


class _SandboxAgent:
    def __init__(self, channel: PacketChannel, isolation: Isolation, setup: AgentSetup, oom_score: int) -> None:
        self._channel, self._isolation, self._setup, self._oom_score = channel, isolation, setup, oom_score
        self._workspace = workspace.AgentWorkspace(setup.workspace)
        self._memory = MemoryWatch(isolation, setup.memory_mib * _MIB, self._has_message)
        self._action: AgentAction | None = None
        self._has_leftovers = False
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        self._woken, self._waker = woken, waker
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._poller = select.poll()
        self._poller.register(channel.socket, select.POLLIN)
        self._poller.register(woken, select.POLLIN)

    def serve(self) -> None:
        """Serve requests until the channel ends."""
        while True:
            polled = self._action is not None and (self._setup.watches_memory or self._setup.watches_files)
            delay_s = self._memory.delay_s if self._setup.watches_memory else _POLL_S
            for fd, _ in self._poller.poll(delay_s * 1000 if polled else None):
                if fd == self._woken.fileno():
                    self._woken.recv(4096)
                elif not self._handle_message():
                    return
            self._reap()
            if polled and self._action is not None:
                self._check_limits(self._action)

    def _handle_message(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        message, files = received
        if message["op"] == "start":
            self._start(*files)
        elif message["op"] == "kill" and self._action is not None:
            self._kill(self._action)
        elif message["op"] == "finish" and self._action is not None:
            if message.get("shell") == "ended":
                self._await_shell(self._action)
            action, self._action = self._action, None
            self._finish(action, status=0, peak_kib=0)
        return True

    def _has_message(self) -> bool:
        return bool(select.select([self._channel.socket], [], [], 0)[0])

    def _await_shell(self, action: AgentAction) -> None:
        """Wait until the shell of a watched action is reaped, which is shortly after its terminal closes."""
        deadline = time.monotonic() + _SHELL_END_LIMIT_S
        while action.shell_pid and action.shell_status is None and time.monotonic() < deadline:
            self._reap()
            time.sleep(_KILL_POLL_S)

    def _start(self, payload: int, *stdio: int) -> None:
        try:
            order = AgentRequest.unpack(os.dup(payload))
            user = find_user(order.user) if order.user is not None else None
            note = self._workspace.mend(user)
            self._workspace.check_paths([*order.files, *order.fetch])
            with acting_as(user):
                self._workspace.write_files(order.files)
                self._workspace.check_directory(order.cwd)
        except MemoryError:
            self._channel.send(
                {
                    "op": "exited",
                    "limit": "memory",
                    "message": "the input files do not fit in the memory of the environment",
                }
            )
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) in _DISK_FULL:
                self._channel.send(
                    {
                        "op": "exited",
                        "limit": "disk",
                        "message": "the input files do not fit on the disk of the environment",
                    }
                )
            else:
                self._send_refusal(str(error))
        else:
            if order.mode == "files":
                with acting_as(user):
                    message = self._workspace.send_files(order.fetch, self._channel)
                self._channel.send({"op": "exited", "status": 0, "message": joined(note, message)})
            else:
                self._launch(order, user, stdio, note)
        for fd in (payload, *stdio):
            os.close(fd)

    def _launch(
        self, request: AgentRequest, user: SandboxUser | None, stdio: tuple[int, ...], note: str | None
    ) -> None:
        # If no process was left behind, none can have appeared: the environment was frozen.
        action = AgentAction(
            frozenset(self._isolation.other_processes()) if self._has_leftovers else frozenset(), request, user
        )
        action.note = note
        # A command of a session starts no process here, and its shell is one of the earlier processes.
        if request.mode != "watch" and len(action.earlier_processes) >= self._setup.pids:
            self._end_leftovers(action)
        if not self._setup.has_cgroup:
            resume(action.earlier_processes)
            self._isolation.signal_all(signal.SIGCONT)
        try:
            if request.mode == "source":
                action.place_source()
            # If memory runs out, the kernel must choose the action and not the agent.
            self._set_oom_score(_OOM_SCORE_FIRST)
            action.pid = self._spawn_with_room(action, stdio)
        except (OSError, ValueError) as error:
            action.remove_source()
            self._report_unstarted(action, error, stdio[2])
            return
        finally:
            self._set_oom_score(_OOM_SCORE_LAST)
            if action.source is not None:
                action.source.close()
        self._channel.send({"op": "started"})
        if request.mode == "session":
            self._finish(action, status=0, peak_kib=0)
        else:
            self._action = action

    def _spawn_with_room(self, action: AgentAction, stdio: tuple[int, ...]) -> int:
        """Start the action's first process.

        If processes that earlier actions left occupy the process limit, end them. No program inside could start.
        """
        try:
            return self._spawn(action, stdio)
        except BlockingIOError:
            if not self._has_leftovers:
                raise
        self._end_leftovers(action)
        return self._spawn(action, stdio)

    def _end_leftovers(self, action: AgentAction) -> None:
        ended = "processes that earlier actions had left were ended, because the process limit allowed no other"
        action.note, action.earlier_processes = joined(action.note, ended), frozenset()
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        self._has_leftovers = False
        with contextlib.suppress(ChildProcessError):  # no child is left
            while time.monotonic() < deadline:
                # Stopped processes keep their places in the limit, so that none can be started before all are killed.
                self._isolation.signal_all(signal.SIGSTOP)
                self._isolation.signal_all(signal.SIGKILL)
                if os.wait4(-1, os.WNOHANG)[0] == 0:
                    time.sleep(_KILL_POLL_S)

    def _spawn(self, action: AgentAction, stdio: tuple[int, ...]) -> int:
        """Start the action's first process. Return its pid, or 0 if the action has none. Raises OSError."""
        request, inherited = action.request, action.source.inherited if action.source is not None else ()
        if request.mode == "watch":
            return 0
        if action.user is not None:
            request = with_home(request, action.user, self._setup.home)
            give_files(stdio, action.user)
        if request.mode == "session":
            with acting_as(action.user):
                return spawn_session(request, stdio, self._isolation)
        if self._isolation.confines_actions:
            return spawn_by_fork(request, stdio, self._isolation, *inherited)
        with acting_as(action.user):
            return spawn_process(request, stdio)

    def _set_oom_score(self, score: bytes) -> None:
        with contextlib.suppress(PermissionError):  # a host may have set a higher minimum
            os.pwrite(self._oom_score, score, 0)

    def _send_refusal(self, message: str) -> None:
        self._channel.send({"op": "exited", "refused": message[:_MAX_MESSAGE]})

    def _report_unstarted(self, action: AgentAction, error: Exception, stderr: int) -> None:
        """Report like a shell: 127 for a missing command, 126 for one that cannot be executed."""
        if isinstance(error, BlockingIOError):
            message = "the process limit was reached before the action could start"
            self._channel.send({"op": "exited", "limit": "pids", "message": message})
            return
        if action.request.mode == "source" and getattr(error, "errno", None) in _DISK_FULL:
            message = "the source does not fit on the disk of the environment"
            self._channel.send({"op": "exited", "limit": "disk", "message": message})
            return
        if action.request.mode == "source" and isinstance(error, FileNotFoundError):
            self._channel.send({"op": "exited", "no_interpreter": True})
            return
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        message = f"cannot run {action.request.argv[0]!r}: {error}"
        os.write(stderr, f"{message}\n".encode())
        self._channel.send({"op": "exited", "status": code << 8, "message": message[:_MAX_MESSAGE]})

    def _reap(self) -> None:
        """Reap every dead child, including orphans. The action's end is reported after all zombies are reaped."""
        ended: tuple[AgentAction, int, int] | None = None
        with contextlib.suppress(ChildProcessError):
            while (dead := os.wait4(-1, os.WNOHANG))[0] != 0:
                pid, status, usage = dead
                if os.WIFSTOPPED(status):
                    release_tracee(pid, status)
                elif self._action is not None and pid == self._action.pid:
                    ended = self._action, status, usage.ru_maxrss
                elif self._action is not None and pid == self._action.shell_pid:
                    self._action.shell_status = status
        if ended is not None:
            self._action = None
            self._finish(*ended)

    def _finish(self, action: AgentAction, status: int, peak_kib: int) -> None:
        is_full = self._isolation.write_area_is_full()  # before the removal of the source, which would hide it
        action.remove_source()
        others = self._isolation.other_processes()
        self._has_leftovers = self._setup.keeps_processes and bool(others)
        left = [process for process in others if process not in action.earlier_processes]
        if not self._setup.has_cgroup:
            self._isolation.signal_all(signal.SIGSTOP)
        with acting_as(action.user):
            message = joined(action.note, self._workspace.send_files(action.request.fetch, self._channel))
        # A child starts with the agent's own pages, which are not the action's memory.
        peak_kib = max(peak_kib if peak_kib > _own_peak_kib() + _PEAK_MARGIN_KIB else 0, action.peak_kib)
        limit = "memory" if action.is_over_memory else action.exceeded_limit or ("disk" if is_full else None)
        self._channel.send(
            {
                "op": "exited",
                "status": status,
                "pid": action.pid,
                "shell_status": action.shell_status,
                "peak_kib": peak_kib,
                "cpu_us": children_cpu_us() - action.cpu_us_before,
                "leftover_processes": len(left) if self._setup.keeps_processes else 0,
                "message": message,
                "limit_if_failed": limit,
                "over_memory": action.is_over_memory,
            }
        )

    def _kill(self, action: AgentAction) -> None:
        """Kill the action and return when none of its processes runs.

        Earlier processes survive unless that takes too long.
        """
        if not self._setup.has_cgroup:
            # Stopped processes cannot fork or compete for the CPU during the search; they would be stopped afterwards
            # anyway.
            self._isolation.signal_all(signal.SIGSTOP)
        deadline = time.monotonic() + (_KILL_GRACE_S if action.earlier_processes else 0)
        while fresh := [
            process for process in self._isolation.other_processes() if process not in action.earlier_processes
        ]:
            if time.monotonic() < deadline:
                signal_each(fresh, signal.SIGKILL)
            else:
                self._isolation.signal_all(signal.SIGKILL)
            if time.monotonic() > deadline + _KILL_TIMEOUT_S:
                return  # the launcher's next stage ends the whole environment
            time.sleep(_KILL_POLL_S)
        if action.pid and is_withheld(action.pid):
            self._isolation.signal_all(signal.SIGKILL)
        if action.request.mode == "watch" and not self._setup.has_cgroup:
            # earlier processes, such as the shell, must report how the command ended
            resume(action.earlier_processes)
            self._isolation.signal_all(signal.SIGCONT)

    def _check_limits(self, action: AgentAction) -> None:
        action.exceeded_limit = action.exceeded_limit or self._isolation.exceeded_limit()
        if action.exceeded_limit is not None:
            self._kill(action)  # repeated in case the first kill missed some
        elif self._setup.watches_memory:
            self._check_memory(action)

    def _check_memory(self, action: AgentAction) -> None:
        used = self._memory.used_bytes()
        action.peak_kib = max(action.peak_kib, used >> 10)
        if used > self._setup.memory_mib * _MIB:
            action.is_over_memory = True
            self._kill(action)


def _own_peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
