"""Daemon of a sandbox: starts processes, buffers their output, and answers the requests that actions relay."""

from __future__ import annotations

import base64
import itertools
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import OrderedDict, deque
from typing import Any

from arl_gateway.compat.e2b.guest.accounts import acting_as, default_account, find_account
from arl_gateway.compat.e2b.guest.code_requests import CodeRequests
from arl_gateway.compat.e2b.guest.event_buffer import EventBuffer
from arl_gateway.compat.e2b.guest.file_operations import OPERATIONS, GuestError, resolve_path
from arl_gateway.compat.e2b.guest.processes import SIGNALS, GuestProcess, start
from arl_gateway.compat.e2b.guest.watches import DirectoryWatch

__all__ = ["Daemon", "main"]

SOCKET = "socket"
READ_BYTES = 1 << 16
MAX_QUEUED_BYTES = 1 << 18
"""Bytes queued for a relay. More events stay with their processes."""
MAX_RESPONSES = 256
"""Responses that are repeated if their request is repeated."""
ENDED_PROCESS_S = 30.0
"""Seconds in which a client can connect to an ended process."""
POLL_S = 5.0
REPEATABLE = ("read", "stat", "list")


class Relay:
    """The connection of one action."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.partial = b""
        self.queue: deque[bytes] = deque()
        self.queued = 0
        self.expected = 1
        """Requests that must arrive before the relay may end."""
        self.followed: dict[int, int] = {}
        """Number of the last event sent, by process id."""
        self.has_ended = False

    def send(self, message: bytes) -> None:
        """Queue a line."""
        self.queue.append(message + b"\n")
        self.queued += len(message) + 1

    def flush(self) -> None:
        """Send queued lines as far as the relay reads them."""
        while self.queue:
            try:
                sent = self.peer.send(self.queue[0])
            except BlockingIOError:
                return
            except OSError:
                self.queue.clear()
                self.has_ended = True
                return
            self.queued -= sent
            rest = self.queue.popleft()[sent:]
            if rest:
                self.queue.appendleft(rest)


class Daemon:
    """All state of the sandbox's processes and relays."""

    def __init__(self, home: str) -> None:
        self.account = default_account(home)
        self.sources: dict[int, EventBuffer] = {}
        self.numbers = itertools.count(-1, -1)
        self.code = CodeRequests(self.sources, self.numbers, self.account)
        self.relays: dict[int, Relay] = {}
        self.responses: OrderedDict[str, bytes] = OrderedDict()
        self.selector = selectors.DefaultSelector()
        self.waits: dict[int, int] = {}
        """Events for which each descriptor is registered."""

    def serve(self, listener: socket.socket) -> None:
        """Serve relays until the sandbox ends."""
        child_pipe, write_end = os.pipe()
        for fd in (child_pipe, write_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(listener, selectors.EVENT_READ, "listener")
        self.selector.register(child_pipe, selectors.EVENT_READ, "children")
        while True:
            self._register()
            for key, _ in self.selector.select(self._pause_s()):
                self._handle(key, listener)
            self._advance()

    def _handle(self, key: selectors.SelectorKey, listener: socket.socket) -> None:
        if key.data == "listener":
            peer, _ = listener.accept()
            peer.setblocking(False)
            self.relays[peer.fileno()] = Relay(peer)
        elif key.data == "children":
            os.read(key.fd, READ_BYTES)
        elif key.fd in self.relays:
            self._read_relay(self.relays[key.fd])
        else:
            process = self.sources[key.data]
            if key.fd in process.outputs and process.may_read():
                process.read_output(key.fd)
            process.write_input()

    def _register(self) -> None:
        """Register each descriptor for the events that can be handled now."""
        wanted: dict[int, tuple[int, Any]] = {}
        for fd, relay in self.relays.items():
            wanted[fd] = selectors.EVENT_READ | (selectors.EVENT_WRITE if relay.queue else 0), "relay"
        for process in self.sources.values():
            for fd in process.outputs if process.may_read() else ():
                wanted[fd] = selectors.EVENT_READ, process.pid
            if process.unwritten and (at := process.input_fd()) is not None:
                wanted[at] = wanted.get(at, (0, 0))[0] | selectors.EVENT_WRITE, process.pid
        for fd in [fd for fd in self.waits if fd not in wanted]:
            self._unregister(fd)
        for fd, (events, data) in wanted.items():
            if fd in self.waits:
                self._unregister(fd)
            self.selector.register(fd, events, data)
            self.waits[fd] = events

    def _unregister(self, fd: int) -> None:
        del self.waits[fd]
        try:
            self.selector.unregister(fd)
        except (KeyError, ValueError, OSError):
            return

    def _pause_s(self) -> float:
        deadlines = [each.deadline for each in self.sources.values() if each.deadline and not each.has_ended]
        pauses = [POLL_S, *(each - time.monotonic() for each in deadlines)]
        return max(0.0, min(pauses))

    def _advance(self) -> None:
        """End processes, and send what relays wait for."""
        now = time.monotonic()
        for process in list(self.sources.values()):
            if process.deadline is not None and now >= process.deadline and not process.has_ended:
                process.is_overdue = True
                process.kill(signal.SIGKILL)
            process.check_end()
            if isinstance(process, DirectoryWatch) and process.may_read():
                process.read_output(process.fd)  # the action may end now, and the next one may be far away
            if process.has_ended and now > process.ended_at + ENDED_PROCESS_S:
                del self.sources[process.pid]
        for fd, relay in list(self.relays.items()):
            self._send_events(relay)
            relay.flush()
            if relay.has_ended:
                self._unregister(fd)
                relay.peer.close()
                del self.relays[fd]

    def _send_events(self, relay: Relay) -> None:
        is_complete = True
        for pid, sent in list(relay.followed.items()):
            process = self.sources.get(pid)
            if process is None:
                del relay.followed[pid]
                continue
            for number, _, event in process.events:
                if number <= sent:
                    continue
                if relay.queued > MAX_QUEUED_BYTES:
                    is_complete = False
                    break
                relay.send(json.dumps({"pid": pid, "number": number, "event": event}).encode())
                relay.followed[pid] = number
        if is_complete and relay.expected <= 0 and self._is_idle():
            relay.send(b"idle")
            relay.expected = 1

    def _read_relay(self, relay: Relay) -> None:
        try:
            data = relay.peer.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            relay.has_ended = True
            return
        *lines, relay.partial = (relay.partial + data).split(b"\n")
        for line in lines:
            if line:
                self._answer(relay, json.loads(line))

    def _answer(self, relay: Relay, request: dict[str, Any]) -> None:
        relay.expected -= 1
        if request["op"] == "begin":
            relay.expected += request["count"]
            return
        if request["op"] == "follow":
            self._follow(relay, request["pid"], request["after"])
            return
        id = request["id"]
        if (known := self.responses.get(id)) is None:
            known = self._respond(relay, id, request)
            if request["op"] not in REPEATABLE:
                self.responses[id] = known
                while len(self.responses) > MAX_RESPONSES:
                    self.responses.popitem(last=False)
        relay.send(known)

    def _respond(self, relay: Relay, id: str, request: dict[str, Any]) -> bytes:
        try:
            answer: dict[str, Any] = {"id": id, "result": self._perform(relay, request["op"], request["arguments"])}
        except GuestError as error:
            answer = {"id": id, "error": [error.code, str(error)]}
        except OSError as error:
            known = GuestError.of_os_error(error)
            answer = {"id": id, "error": [known.code, str(known)]}
        except Exception as error:  # noqa: BLE001 - the daemon must survive, and the client must learn the error
            answer = {"id": id, "error": ["internal", f"{type(error).__name__}: {error}"]}
        return json.dumps(answer).encode()

    def _follow(self, relay: Relay, pid: int, after: int) -> None:
        if (process := self.sources.get(pid)) is not None:
            process.acknowledge(after)
            process.is_followed = True
            relay.followed[pid] = after
        else:
            relay.send(json.dumps({"pid": pid, "number": after + 1, "event": {"end": {"lost": True}}}).encode())

    def _perform(self, relay: Relay, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if op in OPERATIONS:
            account = find_account(arguments.pop("user", ""), self.account)
            for name in ("path", "destination"):
                if name in arguments:
                    arguments[name] = resolve_path(arguments[name], account.home)
            operation: Any = OPERATIONS[op]
            with acting_as(account):
                return dict(operation(**arguments))
        if op == "start":
            process = start(arguments, self.account)
            self.sources[process.pid] = process
            relay.followed[process.pid] = 0
            return {"pid": process.pid}
        if op == "processes":
            found = [each for each in self.sources.values() if isinstance(each, GuestProcess)]
            running = [each for each in found if not each.has_ended]
            return {"processes": [{"pid": each.pid, "config": each.config} for each in running]}
        if op in self.code.OPERATIONS:
            result = self.code.perform(op, arguments)
            if op == "execute":
                relay.followed[result["pid"]] = 0
            return result
        if op in ("watch", "watch_events", "unwatch"):
            return self._watch(relay, op, arguments)
        return self._control(relay, op, arguments)

    def _watch(self, relay: Relay, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Create, read or end a watch of a directory."""
        if op == "watch":
            options = {name: bool(arguments[name]) for name in ("is_recursive", "has_entries")}
            watch = DirectoryWatch(next(self.numbers), arguments["path"], **options)
            self.sources[watch.pid] = watch
            if arguments["is_followed"]:
                relay.followed[watch.pid] = 0
            return {"pid": watch.pid}
        found = self.sources.get(arguments["pid"])
        if not isinstance(found, DirectoryWatch):
            raise GuestError("not_found", f"watcher {arguments['pid']} not found")
        if op == "watch_events":
            return {"events": found.drain()}
        found.close()
        del self.sources[found.pid]
        return {}

    def _is_idle(self) -> bool:
        return all(each.has_ended or not each.is_counted for each in self.sources.values())

    def _control(self, relay: Relay, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Perform an operation on one process."""
        process = self.sources.get(arguments["pid"])
        if not isinstance(process, GuestProcess) or (process.has_ended and op != "connect"):
            raise GuestError("not_found", f"process with pid {arguments['pid']} not found")
        if op == "connect":
            after = process.last_number - (1 if process.has_ended else 0)
            if process.pid not in relay.followed:
                self._follow(relay, process.pid, after)
            return {"pid": process.pid, "number": after}
        if op == "unfollow":
            process.is_followed = False
            process.acknowledge(process.last_number - 1 if process.has_ended else process.last_number)
        elif op == "input":
            process.feed(base64.b64decode(arguments["data"]))
        elif op == "close_stdin":
            process.close_stdin()
        elif op == "signal":
            process.kill(SIGNALS[arguments["signal"]])
        elif op == "resize":
            process.resize(arguments["cols"], arguments["rows"])
        else:
            raise GuestError("unimplemented", f"not supported by this server: {op}")
        return {}


def main() -> None:
    """Serve on the socket in the current directory. The argument is the home directory."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = f"{SOCKET}.{os.getpid()}"
    listener.bind(temporary)
    listener.listen(16)
    os.rename(temporary, SOCKET)
    Daemon(sys.argv[1]).serve(listener)


if __name__ == "__main__":
    main()
