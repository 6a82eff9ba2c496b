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

from . import seccomp, worker
from .agent import run
from .channel import Channel, as_file, content_of
from .drivers import Driver
from .syscalls import CLONE_ALL, unshare

__all__ = ["INSIDE_ID", "Zygote", "start_zygote"]

INSIDE_ID = 1000
"""The uid and gid that every namespaced action sees as its own."""
_PID = struct.Struct("i")
_MAX_ASKED = 16
_MAX_ERROR = 2000
_GONE = "the process that makes environments is gone; restart the launcher"
_Made = Callable[[int, str], None]


class Zygote:
    """The launcher's handle: asks for agents; each answer comes once, in any order."""

    def __init__(self, channel: Channel, pid: int) -> None:
        self.channel, self.pid = channel, pid
        self.is_gone = False
        self._tickets = itertools.count()
        self._asked: dict[int, _Made] = {}
        self._waiting: deque[tuple[list[int], dict[str, Any], _Made]] = deque()

    def make(self, agent_end: socket.socket, host_id: int | None, join: Sequence[str], made: "_Made") -> None:
        """Fork an agent on this end of its channel, which is taken over; `made` gets its pid, or 0 and why not.

        Where it gets namespaces of its own, `host_id` is the only uid in them. `join` are files of cgroups. Raises
        OSError where it cannot be asked for, ConnectionError among them: then the zygote is gone.
        """
        self._begin([agent_end.detach()], {"host_id": host_id, "join": list(join)}, made)

    def work(self, stream: int, mounts: int | None, wanted: Mapping[str, Any], made: "_Made") -> None:
        """Fork a worker for an environment's files, as `make` does an agent; both files are taken over.

        What is wanted may be longer than a packet, and goes beside it.
        """
        files = [stream] if mounts is None else [stream, mounts]
        try:
            files.insert(0, as_file(json.dumps(dict(wanted)).encode()))
        except OSError:
            _close(files)
            raise
        self._begin(files, {"is_work": True}, made)

    @property
    def is_idle(self) -> bool:
        """Nobody waits for an agent."""
        return not self._asked

    def answer(self) -> bool:
        """Serve one answer; False when the zygote is gone."""
        received = self.channel.receive()
        if received is None:
            self.is_gone = True
            self._refuse_all()
            return False
        message, _ = received
        self._asked.pop(message["ticket"], _nobody)(message["pid"], message["error"])
        for made, error in self._ask():
            made(0, str(error))
        return True

    def _begin(self, files: list[int], wanted: dict[str, Any], made: "_Made") -> None:
        if self.is_gone:
            _close(files)
            raise ConnectionError(_GONE)
        self._waiting.append((files, wanted, made))
        for _, error in self._ask():  # whoever waited before has been asked for
            raise error

    def _ask(self) -> list[tuple[_Made, OSError]]:
        """A few at a time: with full channels both sides would wait for each other. Those that can't be asked for."""
        failed: list[tuple[_Made, OSError]] = []
        while self._waiting and len(self._asked) < _MAX_ASKED and not self.is_gone:
            files, wanted, made = self._waiting.popleft()
            ticket = next(self._tickets)
            self._asked[ticket] = made
            try:
                self.channel.send({"ticket": ticket, **wanted}, files)
            except OSError as error:
                failed.append((self._asked.pop(ticket), error))
            finally:
                _close(files)
        return failed

    def _refuse_all(self) -> None:
        for files, _, _ in self._waiting:
            _close(files)
        refused = [*self._asked.values(), *(made for _, _, made in self._waiting)]
        self._asked.clear()
        self._waiting.clear()
        for made in refused:
            made(0, _GONE)


def _nobody(_pid: int, _error: str) -> None:
    """Waits for what answers no question."""


def start_zygote(driver: Driver, native: int | None = None) -> Zygote:
    """`native` is the program of the agents in C; it is closed here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for has_cgroup in (False, True):
        seccomp.program(has_cgroup=has_cgroup)  # assembled once, for all agents
    gc.collect()
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        ours.close()
        # Init of a pid namespace gets the signals it has a handler for, also from inside, and Python has one for
        # SIGINT that would end it. This one does nothing; unlike SIG_IGN it is not passed on to what is executed.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        os.setsid()  # a terminal's Ctrl-C is for the launcher, which ends its environments in order
        _serve(Channel(theirs), driver, native)
    theirs.close()
    if native is not None:
        os.close(native)
    return Zygote(Channel(ours), pid)


def _serve(channel: Channel, driver: Driver, native: int | None) -> NoReturn:
    """Several at once: joining a cgroup may wait for the kernel, and each waits in a process of its own."""
    makings: dict[int, _Making] = {}
    poller = select.poll()
    poller.register(channel.socket, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == channel.socket.fileno():
                if (making := _begin(channel, driver, native)) is not None:
                    makings[making.fileno()] = making
                    poller.register(making.fileno(), select.POLLIN)
            elif (answer := makings[fd].advance()) is not None:
                poller.unregister(fd)
                makings.pop(fd).close()
                _answer(channel, answer)


def _begin(channel: Channel, driver: Driver, native: int | None) -> "_Making | None":
    """What is asked for next. Where it cannot be made, and be it no question at all, that is the answer."""
    ticket: int | None = None
    files: list[int] = []
    try:
        if (received := channel.receive()) is None:
            os._exit(0)
        message, files = received
        ticket = message["ticket"]
        return _Making(message, files, driver, native)
    except (OSError, ValueError, LookupError, TypeError) as error:
        _answer(channel, {"ticket": ticket, "pid": 0, "error": str(error)[:_MAX_ERROR]})
        return None
    finally:
        _close(files)


def _answer(channel: Channel, message: Mapping[str, Any]) -> None:
    try:
        channel.send(message)
    except ConnectionError:
        os._exit(0)  # the launcher has died


@dataclass(frozen=True, slots=True)
class _Agent:
    """One to be: its end of the channel, and what it becomes."""

    channel: int
    driver: Driver
    native: int | None


class _Making:
    """One process on its way, through a middle one: only children of whoever unshares enter the new pid namespace."""

    def __init__(self, message: Mapping[str, Any], files: Sequence[int], driver: Driver, native: int | None) -> None:
        self._ticket, self._host_id = message["ticket"], message.get("host_id")
        is_work = bool(message.get("is_work"))
        agent, join = _Agent(files[0], driver, native), message.get("join", ())
        self._is_mapped = not driver.zygote_unshares or is_work
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._middle = os.fork()
        except OSError:
            self._channel.close()
            theirs.close()
            raise
        if self._middle == 0:
            self._channel.close()  # with it open, it would wait for the zygote for ever where that has died
            if is_work:
                _be_middle_of_work(theirs, files)
            _be_middle(theirs, agent, join)
        theirs.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def advance(self) -> dict[str, Any] | None:
        """One step on; the answer once it is made, or failed."""
        try:
            said = _expect(self._channel.recv(4096))
            if not self._is_mapped and self._host_id is not None:
                _map_ids(self._middle, self._host_id)
                self._is_mapped = True
                self._channel.sendall(b"mapped")
                return None
        except OSError as error:
            return {"ticket": self._ticket, "pid": 0, "error": f"cannot make namespaces: {error}"}
        return {"ticket": self._ticket, "pid": int(_PID.unpack(said)[0]), "error": ""}

    def close(self) -> None:
        """Afterwards the middle process is reaped, so that the launcher, a subreaper, is the agent's parent."""
        self._channel.close()
        os.waitpid(self._middle, 0)


def _be_middle(to_zygote: socket.socket, agent: _Agent, join: Sequence[str]) -> NoReturn:
    try:
        for path in join:
            _write(path, "0")
        if agent.driver.zygote_unshares:
            unshare(CLONE_ALL)
            to_zygote.sendall(b"okay")
            if to_zygote.recv(16) != b"mapped":
                os._exit(1)
        pid = os.fork()
        if pid == 0:
            run(agent.channel, agent.driver.walls(), agent.native)
        to_zygote.sendall(_PID.pack(pid))
    except OSError as error:
        to_zygote.sendall(b"error " + str(error).encode())
    finally:
        os._exit(0)


def _be_middle_of_work(to_zygote: socket.socket, files: Sequence[int]) -> NoReturn:
    """Its own end makes the worker the launcher's child. What is wanted is read here, for no later fork to have."""
    try:
        wanted = json.loads(content_of(files[0]))
        pid = os.fork()
        if pid == 0:
            worker.run(files[1], files[2] if len(files) > 2 else None, wanted)
        to_zygote.sendall(_PID.pack(pid))
    except (OSError, ValueError) as error:
        to_zygote.sendall(b"error " + str(error).encode())
    finally:
        os._exit(0)


def _expect(answer: bytes) -> bytes:
    if len(answer) != _PID.size:
        raise OSError(answer.removeprefix(b"error ").decode() or "it died")
    return answer


def _map_ids(pid: int, host_id: int) -> None:
    """The namespace knows one uid and one gid; every other, root's above all, is nobody in it."""
    if os.geteuid() == 0:
        host_gid = host_id
    else:
        host_gid = os.getegid()
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", f"{INSIDE_ID} {host_id} 1")
    _write(f"/proc/{pid}/gid_map", f"{INSIDE_ID} {host_gid} 1")


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
