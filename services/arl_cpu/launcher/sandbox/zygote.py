"""The process that forks environments. Made before the launcher holds any data, so that no fork inherits some.

A warm Python action can read all memory of the process it was forked from: of this one, nothing worth reading.
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
from arl_cpu.launcher.linux.packet_channel import PacketChannel, create_sealed_file, read_file
from arl_cpu.launcher.linux.syscalls import CLONE_ALL, unshare

__all__ = ["INSIDE_ID", "Zygote", "start_zygote"]

INSIDE_ID = 1000
"""The uid and gid that every namespaced action sees as its own."""
_PID_STRUCT = struct.Struct("i")
_MAX_PENDING = 16
_MAX_ERROR = 2000
_LOST_MESSAGE = "the process that makes environments is gone; restart the launcher"
_CreatedCallback = Callable[[int, str], None]


class Zygote:
    """The launcher's handle: asks for agents; each answer comes once, in any order."""

    def __init__(self, channel: PacketChannel, pid: int) -> None:
        self.channel, self.pid = channel, pid
        self.is_lost = False
        self._tickets = itertools.count()
        self._pending: dict[int, _CreatedCallback] = {}
        self._queue: deque[tuple[list[int], dict[str, Any], _CreatedCallback]] = deque()

    def fork_agent(
        self, agent_end: socket.socket, host_id: int | None, join_files: Sequence[str], on_created: "_CreatedCallback"
    ) -> None:
        """Fork an agent on this end of its channel, which is taken over; `made` gets its pid, or 0 and why not.

        Where it gets namespaces of its own, `host_id` is the only uid in them. `join` are files of cgroups. Raises
        OSError where it cannot be asked for, ConnectionError among them: then the zygote is gone.
        """
        self._enqueue([agent_end.detach()], {"host_id": host_id, "join": list(join_files)}, on_created)

    def fork_worker(
        self, stream: int, mounts: int | None, request: Mapping[str, Any], on_created: "_CreatedCallback"
    ) -> None:
        """Fork a worker for an environment's files, as `make` does an agent; both files are taken over.

        What is wanted may be longer than a packet, and goes beside it.
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
        """Nobody waits for an agent."""
        return not self._pending

    def handle_response(self) -> bool:
        """Serve one answer; False when the zygote is gone."""
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
        for _, error in self._send_requests():  # whoever waited before has been asked for
            raise error

    def _send_requests(self) -> list[tuple[_CreatedCallback, OSError]]:
        """A few at a time: with full channels both sides would wait for each other. Those that can't be asked for."""
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
    """Waits for what answers no question."""


def start_zygote(driver: IsolationDriver, native: int | None = None) -> Zygote:
    """`native` is the program of the agents in C; it is closed here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for has_cgroup in (False, True):
        seccomp.build_filter(has_cgroup=has_cgroup)  # assembled once, for all agents
    gc.collect()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        ours.close()
        # Init of a pid namespace gets the signals it has a handler for, also from inside, and Python has one for
        # SIGINT that would end it. This one does nothing; unlike SIG_IGN it is not passed on to what is executed.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        os.setsid()  # a terminal's Ctrl-C is for the launcher, which ends its environments in order
        _serve(PacketChannel(theirs), driver, native)
    theirs.close()
    if native is not None:
        os.close(native)
    return Zygote(PacketChannel(ours), pid)


def _serve(channel: PacketChannel, driver: IsolationDriver, native: int | None) -> NoReturn:
    """Several at once: joining a cgroup may wait for the kernel, and each waits in a process of its own."""
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
    """What is asked for next. Where it cannot be made, and be it no question at all, that is the answer."""
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
        os._exit(0)  # the launcher has died


@dataclass(frozen=True, slots=True)
class _AgentParameters:
    """One to be: its end of the channel, and what it becomes."""

    channel: int
    driver: IsolationDriver
    native: int | None


class _ProcessCreation:
    """One process on its way, through a middle one: only children of whoever unshares enter the new pid namespace."""

    def __init__(
        self, message: Mapping[str, Any], files: Sequence[int], driver: IsolationDriver, native: int | None
    ) -> None:
        self._ticket, self._host_id = message["ticket"], message.get("host_id")
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
            self._channel.close()  # with it open, it would wait for the zygote for ever where that has died
            if is_work:
                _run_worker_intermediate(theirs, files)
            _run_agent_intermediate(theirs, agent, join)
        theirs.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def advance(self) -> dict[str, Any] | None:
        """One step on; the answer once it is made, or failed."""
        try:
            said = _check_reply(self._channel.recv(4096))
            if not self._has_mapped_ids and self._host_id is not None:
                _map_ids(self._intermediate_pid, self._host_id)
                self._has_mapped_ids = True
                self._channel.sendall(b"mapped")
                return None
        except OSError as error:
            return {"ticket": self._ticket, "pid": 0, "error": f"cannot make namespaces: {error}"}
        return {"ticket": self._ticket, "pid": int(_PID_STRUCT.unpack(said)[0]), "error": ""}

    def close(self) -> None:
        """Afterwards the middle process is reaped, so that the launcher, a subreaper, is the agent's parent."""
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
    """Its own end makes the worker the launcher's child. What is wanted is read here, for no later fork to have."""
    try:
        wanted = json.loads(read_file(files[0]))
        pid = os.fork()
        if pid == 0:
            worker.run_worker(files[1], files[2] if len(files) > 2 else None, wanted)
        to_zygote.sendall(_PID_STRUCT.pack(pid))
    except (OSError, ValueError) as error:
        to_zygote.sendall(b"error " + str(error).encode())
    finally:
        os._exit(0)


def _check_reply(reply: bytes) -> bytes:
    if len(reply) != _PID_STRUCT.size:
        raise OSError(reply.removeprefix(b"error ").decode() or "it died")
    return reply


def _map_ids(pid: int, host_id: int) -> None:
    """The namespace knows one uid and one gid; every other, root's above all, is nobody in it."""
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
