"""The egress process of this launcher: started at the first use of a network, and again after a failure."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from arl_core.network.addresses import parse_name_servers, parse_networks
from arl_cpu.launcher.linux.event_loop import EventLoop

__all__ = ["EGRESS_SETTINGS", "EgressProcess", "ServedNetwork"]

EGRESS_SETTINGS: Mapping[str, Callable[[str], object]] = {
    "TANGRAM_NETWORK_PRIVATE": parse_networks,
    "TANGRAM_NETWORK_RESOLVERS": parse_name_servers,
}
"""Settings of the process, with functions that raise ValueError for invalid ones."""
_PASSED = (*EGRESS_SETTINGS, "PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LANG", "LC_CTYPE")
_FIRST_RESTART_S, _MAX_RESTART_S = 0.2, 5.0
_STABLE_S = 10.0
"""A process that ran for so long is started again without a further delay."""
_ANSWER_TIMEOUT_S = 2.0
_MAX_ANSWER = 256 << 10
_MAX_QUEUED = 10_000
"""Messages that wait for a process that does not read. Above it, the process is killed and started again."""
_UsageCallback = Callable[[Mapping[str, Any] | None], None]


class ServedNetwork(Protocol):
    """The network of an environment with open sockets."""

    def send_sockets(self) -> None:
        """Send the sockets and the policy to a new process."""
        ...

    def interrupted(self) -> None:
        """Handle that the process has ended, and all connections with it."""
        ...


class EgressProcess:
    """The launcher's client of the egress process."""

    def __init__(self, loop: EventLoop, children: dict[int, Callable[[int], None]], uid: int | None) -> None:
        self._loop, self._children, self._uid = loop, children, uid
        self._served: dict[str, ServedNetwork] = {}
        self._channel: socket.socket | None = None
        self._pid: int | None = None
        self._outgoing: deque[tuple[bytes, Sequence[int]]] = deque()
        self._tickets = itertools.count(1)
        self._waiting: dict[int, _UsageCallback] = {}
        self._is_stopped = False
        self._started_at, self._delay_s = 0.0, _FIRST_RESTART_S

    @property
    def pid(self) -> int | None:
        """The process id, or None if it does not run."""
        return self._pid

    def add(self, id: str, network: ServedNetwork) -> None:
        """Serve the sockets of an environment."""
        self._served[id] = network
        if self._pid is None:
            self._start()
        else:
            network.send_sockets()

    def remove(self, id: str) -> None:
        """Close the sockets and all connections of an environment."""
        if self._served.pop(id, None) is not None:
            self.send({"op": "close", "environment": id})

    def forget(self, id: str) -> None:
        """Forget an environment that has ended."""
        self.remove(id)
        self.send({"op": "forget", "environment": id})

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message. Duplicates of the files are sent, also if the caller closes them at once."""
        if self._channel is None:
            return  # the next process gets the current state
        duplicates: list[int] = []
        try:
            for file in files:
                duplicates.append(os.dup(file))
        except OSError:
            self._close_files(duplicates)
            self._kill()  # the next process gets the current state
            return
        self._outgoing.append((json.dumps(message).encode(), duplicates))
        if len(self._outgoing) > _MAX_QUEUED:
            self._kill()
        self._write()

    def take_usage(self, id: str, callback: _UsageCallback) -> None:
        """Call back with the use of an environment since the last call, or None if the process does not answer."""
        if self._channel is None:
            callback(None)
            return
        ticket = next(self._tickets)
        self._waiting[ticket] = callback
        self._loop.call_later(_ANSWER_TIMEOUT_S, lambda: self._answer(ticket, None))
        self.send({"op": "usage", "environment": id, "ticket": ticket})

    def stop(self) -> None:
        """End the process for good."""
        self._is_stopped = True
        self._kill()

    def _start(self) -> None:
        self._started_at = time.monotonic()
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            self._restart_later()
            return
        ours.setblocking(False)
        user = "-" if self._uid is None else str(self._uid)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "arl_cpu.egress", str(theirs.fileno()), user],
                env={name: os.environ[name] for name in _PASSED if name in os.environ},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            ours.close()
            self._restart_later()
            return
        finally:
            theirs.close()
        process.returncode = 0  # the event loop reaps it
        self._pid, self._channel = process.pid, ours
        self._children[process.pid] = self._ended
        self._loop.watch(ours.fileno(), self._receive)
        for network in tuple(self._served.values()):
            network.send_sockets()

    def _restart_later(self) -> None:
        if time.monotonic() - self._started_at > _STABLE_S:
            self._delay_s = _FIRST_RESTART_S
        self._loop.call_later(self._delay_s, self._restart)
        self._delay_s = min(2 * self._delay_s, _MAX_RESTART_S)

    def _restart(self) -> None:
        if not self._is_stopped and self._pid is None and self._served:
            self._start()

    def _ended(self, _status: int) -> None:
        self._pid = None
        self._close_channel()
        for network in tuple(self._served.values()):
            network.interrupted()
        for ticket in tuple(self._waiting):
            self._answer(ticket, None)
        self._restart_later()

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(_MAX_ANSWER)
            if data:
                message = json.loads(data)
                self._answer(int(message["ticket"]), message["usage"])
                return
        except BlockingIOError:
            return
        except (OSError, ValueError, LookupError, TypeError):
            pass
        self._kill()
        self._close_channel()

    def _answer(self, ticket: int, usage: Mapping[str, Any] | None) -> None:
        callback = self._waiting.pop(ticket, None)
        if callback is not None:
            callback(usage)

    def _write(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            while self._outgoing:
                data, files = self._outgoing[0]
                socket.send_fds(channel, [data], list(files))
                self._close_files(self._outgoing.popleft()[1])
        except BlockingIOError:
            pass  # the rest is sent when the process has read some
        except OSError:
            self._kill()
            return
        self._loop.watch_writable(channel.fileno(), self._write if self._outgoing else None)

    def _kill(self) -> None:
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._loop.unwatch(self._channel.fileno())
            self._channel.close()
            self._channel = None
        while self._outgoing:
            self._close_files(self._outgoing.popleft()[1])

    @staticmethod
    def _close_files(files: Sequence[int]) -> None:
        for file in files:
            os.close(file)
