"""The process that forks environments. Made before the launcher holds any data, so that no fork inherits some.

A warm Python action can read all memory of the process it was forked from: of this one, nothing worth reading.
"""

import gc
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from . import agent, seccomp
from .channel import Channel
from .syscalls import CLONE_ALL, unshare

__all__ = ["INSIDE_ID", "Zygote", "start_zygote"]

INSIDE_ID = 1000
"""The uid and gid that every namespaced action sees as its own."""
_PID = struct.Struct("i")
_MAX_ASKED = 16
_GONE = "the process that makes environments is gone; restart the launcher"
_Made = Callable[[int, str], None]


class Zygote:
    """The launcher's handle: asks for agents; each answer comes once, in order."""

    def __init__(self, channel: Channel, pid: int) -> None:
        self.channel, self.pid = channel, pid
        self.is_gone = False
        self._asked: deque[_Made] = deque()
        self._waiting: deque[tuple[socket.socket, int | None, _Made]] = deque()

    def make(self, agent_end: socket.socket, host_id: int | None, made: "_Made") -> None:
        """Fork an agent on this end of its channel, which is taken over; `made` gets its pid, or 0 and why not.

        With a `host_id` it gets namespaces of its own, where that uid is the only one. Raises ConnectionError
        where the zygote is gone.
        """
        if self.is_gone:
            agent_end.close()
            raise ConnectionError(_GONE)
        self._waiting.append((agent_end, host_id, made))
        self._ask()

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
        self._asked.popleft()(message["pid"], message["error"])
        self._ask()
        return True

    def _ask(self) -> None:
        """A few at a time: with full channels both sides would wait for each other."""
        while self._waiting and len(self._asked) < _MAX_ASKED and not self.is_gone:
            agent_end, host_id, made = self._waiting.popleft()
            self._asked.append(made)
            with agent_end, suppress(ConnectionError):  # its end is told by `answer`
                self.channel.send({"host_id": host_id}, [agent_end.fileno()])

    def _refuse_all(self) -> None:
        for agent_end, _, _ in self._waiting:
            agent_end.close()
        refused = [*self._asked, *(made for _, _, made in self._waiting)]
        self._asked.clear()
        self._waiting.clear()
        for made in refused:
            made(0, _GONE)


def start_zygote() -> Zygote:
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
        _serve(Channel(theirs))
    theirs.close()
    return Zygote(Channel(ours), pid)


def _serve(channel: Channel) -> NoReturn:
    while (received := channel.receive()) is not None:
        message, (agent_end,) = received
        try:
            answer = {"pid": _fork_agent(agent_end, message["host_id"]), "error": ""}
        except OSError as error:
            answer = {"pid": 0, "error": f"cannot make namespaces: {error}"}
        os.close(agent_end)
        channel.send(answer)
    os._exit(0)


def _fork_agent(agent_end: int, host_id: int | None) -> int:
    """Through a middle process, since only children of whoever unshares enter the new pid namespace.

    Returns after the middle process is reaped: from then on the launcher, a subreaper, is the agent's parent.
    """
    ours, theirs = socket.socketpair()
    middle = os.fork()
    if middle == 0:
        _be_middle(theirs, agent_end, host_id)
    theirs.close()
    try:
        with ours:
            if host_id is not None:
                _expect(ours.recv(4096))
                _map_ids(middle, host_id)
                ours.sendall(b"mapped")
            return int(_PID.unpack(_expect(ours.recv(4096)))[0])
    finally:
        os.waitpid(middle, 0)


def _be_middle(to_zygote: socket.socket, agent_end: int, host_id: int | None) -> NoReturn:
    try:
        if host_id is not None:
            unshare(CLONE_ALL)
            to_zygote.sendall(b"okay")
            if to_zygote.recv(16) != b"mapped":
                os._exit(1)
        pid = os.fork()
        if pid == 0:
            agent.run(agent_end, in_namespaces=host_id is not None)
        to_zygote.sendall(_PID.pack(pid))
    except OSError as error:
        to_zygote.sendall(b"error " + str(error).encode())
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


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
