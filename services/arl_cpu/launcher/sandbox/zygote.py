"""The process that forks environments. It starts before the launcher has any data, so that no fork inherits data.

A Python action can read all memory of the process that it was forked from. The zygote has nothing confidential.
"""

import gc
import itertools
import json
import os
import select
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from arl_cpu.launcher.agent.agent import run_agent
from arl_cpu.launcher.files import worker
from arl_cpu.launcher.isolation import seccomp
from arl_cpu.launcher.isolation.drivers import IsolationDriver
from arl_cpu.launcher.linux.id_ranges import IDS_PER_ENVIRONMENT
from arl_cpu.launcher.linux.packet_channel import PacketChannel, create_sealed_file, read_file
from arl_cpu.launcher.linux.syscalls import CLONE_ALL, unshare
from arl_cpu.launcher.network.listeners import run_listener_process

__all__ = ["INSIDE_ID", "Zygote", "start_zygote"]

INSIDE_ID = 1000
"""uid and gid of every namespaced action inside its namespace, if that has one user."""
_PID_STRUCT = struct.Struct("i")
_MAX_PENDING = 16
_MAX_ERROR = 2000
_LOST_MESSAGE = "the process that creates environments has ended; restart the launcher"
_CreatedCallback = Callable[[int, str], None]


class Zygote:
    """The launcher's client of the zygote. Each request is answered once, in any order."""

    def __init__(self, channel: PacketChannel, pid: int) -> None:
        self.channel, self.pid = channel, pid
        self.is_lost = False
        self._tickets = itertools.count()
        self._pending: dict[int, _CreatedCallback] = {}
        self._queue: deque[tuple[list[int], dict[str, Any], _CreatedCallback]] = deque()

    def fork_agent(
        self,
        agent_end: socket.socket,
        host_id: int | None,
        join_files: Sequence[str],
        on_created: "_CreatedCallback",
        *,
        has_range: bool = False,
    ) -> None:
        """Fork an agent on this end of its channel, which is taken over. `on_created` gets its pid, or 0 and the error.

        If the agent gets namespaces, `host_id` is the only uid in them, or the first of a range, which is root inside.
        `join_files` are files of cgroups. Raises OSError if the request cannot be sent; ConnectionError, a subclass,
        means that the zygote has ended.
        """
        request = {"host_id": host_id, "has_range": has_range, "join": list(join_files)}
        self._enqueue([agent_end.detach()], request, on_created)

    def fork_worker(
        self, stream: int, mounts: int | None, request: Mapping[str, Any], on_created: "_CreatedCallback"
    ) -> None:
        """Fork a worker for an environment's files or sockets, as `fork_agent` does an agent.

        `mounts` is a namespace of the environment. Both files are taken over.

        The request may be longer than a packet and is passed as a file.
        """
        files = [stream] if mounts is None else [stream, mounts]
        try:
            files.insert(0, create_sealed_file(json.dumps(dict(request)).encode()))
        except OSError:
            _close_files(files)
            raise
        self._enqueue(files, {"is_work": True}, on_created)

    @property
    def is_idle(self) -> bool:
        """True if no request is pending."""
        return not self._pending

    def handle_response(self) -> bool:
        """Handle one response. Return False if the zygote has ended."""
        received = self.channel.receive()
        if received is None:
            self.is_lost = True
            self._fail_all()
            return False
        message, _ = received
        self._pending.pop(message["ticket"], _ignore_response)(message["pid"], message["error"])
        for made, error in self._send_requests():
            made(0, str(error))
        return True

    def _enqueue(self, files: list[int], request: dict[str, Any], on_created: "_CreatedCallback") -> None:
        if self.is_lost:
            _close_files(files)
            raise ConnectionError(_LOST_MESSAGE)
        self._queue.append((files, request, on_created))
        for _, error in self._send_requests():  # earlier requests are sent already, so the error belongs to this one
            raise error

    def _send_requests(self) -> list[tuple[_CreatedCallback, OSError]]:
        """Send a few requests at a time: with full channels both sides would deadlock. Return those that failed."""
        failed: list[tuple[_CreatedCallback, OSError]] = []
        while self._queue and len(self._pending) < _MAX_PENDING and not self.is_lost:
            files, wanted, made = self._queue.popleft()
            ticket = next(self._tickets)
            self._pending[ticket] = made
            try:
                self.channel.send({"ticket": ticket, **wanted}, files)
            except OSError as error:
                failed.append((self._pending.pop(ticket), error))
            finally:
                _close_files(files)
        return failed

    def _fail_all(self) -> None:
        for files, _, _ in self._queue:
            _close_files(files)
        refused = [*self._pending.values(), *(made for _, _, made in self._queue)]
        self._pending.clear()
        self._queue.clear()
        for made in refused:
            made(0, _LOST_MESSAGE)


def _ignore_response(_pid: int, _error: str) -> None:
    """Ignore a response without a request."""


def start_zygote(driver: IsolationDriver, native: int | None = None) -> Zygote:
    """Fork the zygote. `native` is the program of the C agent; this function closes it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for has_cgroup in (False, True):
        seccomp.build_filter(has_cgroup=has_cgroup)  # assembled once for all agents
    gc.collect()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        ours.close()
        # The init process of a pid namespace receives only signals that it handles, also from inside. Python handles
        # SIGINT, which would end it. This handler does nothing; unlike SIG_IGN it is not inherited by executed
        # programs.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        os.setsid()  # Ctrl-C in a terminal must reach only the launcher, which ends its environments in order
        _reset_ignored_signals()
        _serve(PacketChannel(theirs), driver, native)
    theirs.close()
    if native is not None:
        os.close(native)
    return Zygote(PacketChannel(ours), pid)


def _reset_ignored_signals() -> None:
    """Give programs the default actions of signals that the launcher inherited as ignored, such as SIGHUP by `nohup`.

    Python itself ignores SIGPIPE and SIGXFSZ; the agent resets these for each program.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _serve(channel: PacketChannel, driver: IsolationDriver, native: int | None) -> NoReturn:
    """Serve requests concurrently.

    Joining a cgroup may wait for the kernel, so each request waits in a separate process.
    """
    makings: dict[int, _ProcessCreation] = {}
    poller = select.poll()
    poller.register(channel.socket, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == channel.socket.fileno():
                if (making := _begin_creation(channel, driver, native)) is not None:
                    makings[making.fileno()] = making
                    poller.register(making.fileno(), select.POLLIN)
            elif (answer := makings[fd].advance()) is not None:
                poller.unregister(fd)
                makings.pop(fd).close()
                _send_response(channel, answer)


def _begin_creation(channel: PacketChannel, driver: IsolationDriver, native: int | None) -> "_ProcessCreation | None":
    """Start the next request. If it fails or is malformed, send the error and return None."""
    ticket: int | None = None
    files: list[int] = []
    try:
        if (received := channel.receive()) is None:
            os._exit(0)
        message, files = received
        ticket = message["ticket"]
        return _ProcessCreation(message, files, driver, native)
    except (OSError, ValueError, LookupError, TypeError) as error:
        _send_response(channel, {"ticket": ticket, "pid": 0, "error": str(error)[:_MAX_ERROR]})
        return None
    finally:
        _close_files(files)


def _send_response(channel: PacketChannel, message: Mapping[str, Any]) -> None:
    try:
        channel.send(message)
    except ConnectionError:
        os._exit(0)  # the launcher has ended


@dataclass(frozen=True, slots=True)
class _AgentParameters:
    """The parameters of a new agent: its end of the channel and its implementation."""

    channel: int
    driver: IsolationDriver
    native: int | None


class _ProcessCreation:
    """The creation of a process by an intermediate one, whose children enter the new pid namespace."""

    def __init__(
        self, message: Mapping[str, Any], files: Sequence[int], driver: IsolationDriver, native: int | None
    ) -> None:
        self._ticket, self._host_id = message["ticket"], message.get("host_id")
        self._has_range = bool(message.get("has_range"))
        is_work = bool(message.get("is_work"))
        agent, join = _AgentParameters(files[0], driver, native), message.get("join", ())
        self._has_mapped_ids = not driver.has_zygote_namespaces or is_work
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._intermediate_pid = os.fork()
        except OSError:
            self._channel.close()
            theirs.close()
            raise
        if self._intermediate_pid == 0:
            self._channel.close()  # otherwise it would never notice the end of the zygote
            if is_work:
                _run_worker_intermediate(theirs, files)
            _run_agent_intermediate(theirs, agent, join)
        theirs.close()

    def fileno(self) -> int:
        """Return the file to wait for."""
        return self._channel.fileno()

    def advance(self) -> dict[str, Any] | None:
        """Advance by one step. Return the response once the process is created or has failed."""
        try:
            said = _check_reply(self._channel.recv(4096))
            if not self._has_mapped_ids and self._host_id is not None:
                _map_ids(self._intermediate_pid, self._host_id, has_range=self._has_range)
                self._has_mapped_ids = True
                self._channel.sendall(b"mapped")
                return None
        except OSError as error:
            return {"ticket": self._ticket, "pid": 0, "error": f"namespaces could not be created: {error}"}
        return {"ticket": self._ticket, "pid": int(_PID_STRUCT.unpack(said)[0]), "error": ""}

    def close(self) -> None:
        """Close the channel and reap the intermediate process, so that the launcher becomes the agent's parent."""
        self._channel.close()
        os.waitpid(self._intermediate_pid, 0)


def _run_agent_intermediate(to_zygote: socket.socket, agent: _AgentParameters, join_files: Sequence[str]) -> NoReturn:
    try:
        for path in join_files:
            _write(path, "0")
        if agent.driver.has_zygote_namespaces:
            unshare(CLONE_ALL)
            to_zygote.sendall(b"okay")
            if to_zygote.recv(16) != b"mapped":
                os._exit(1)
        pid = os.fork()
        if pid == 0:
            run_agent(agent.channel, agent.driver.isolation(), agent.native)
        to_zygote.sendall(_PID_STRUCT.pack(pid))
    except OSError as error:
        to_zygote.sendall(b"error " + str(error).encode())
    finally:
        os._exit(0)


def _run_worker_intermediate(to_zygote: socket.socket, files: Sequence[int]) -> NoReturn:
    """Fork the worker and end, so that it becomes a child of the launcher.

    No later fork inherits the request read here.
    """
    try:
        wanted = json.loads(read_file(files[0]))
        pid = os.fork()
        if pid == 0 and wanted["op"] == "network":
            run_listener_process(files[1], files[2])
        if pid == 0:
            worker.run_worker(files[1], files[2] if len(files) > 2 else None, wanted)
        to_zygote.sendall(_PID_STRUCT.pack(pid))
    except (OSError, ValueError) as error:
        to_zygote.sendall(b"error " + str(error).encode())
    finally:
        os._exit(0)


def _check_reply(reply: bytes) -> bytes:
    if len(reply) != _PID_STRUCT.size:
        raise OSError(reply.removeprefix(b"error ").decode() or "the process ended without an error message")
    return reply


def _map_ids(pid: int, host_id: int, *, has_range: bool) -> None:
    """Map one uid and one gid into the namespace, or a range from root on. Every other id is unmapped."""
    if has_range:
        _write(f"/proc/{pid}/uid_map", f"0 {host_id} {IDS_PER_ENVIRONMENT}")
        _write(f"/proc/{pid}/gid_map", f"0 {host_id} {IDS_PER_ENVIRONMENT}")
        return
    if os.geteuid() == 0:
        host_gid = host_id
    else:
        host_gid = os.getegid()
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", f"{INSIDE_ID} {host_id} 1")
    _write(f"/proc/{pid}/gid_map", f"{INSIDE_ID} {host_gid} 1")


def _close_files(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
