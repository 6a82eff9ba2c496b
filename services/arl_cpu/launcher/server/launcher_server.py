"""The launcher's unix socket. It serves one manager at a time; a new connection replaces the old one."""

import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from arl_cpu.contract.environment_access import EnvironmentSocketError
from arl_cpu.contract.executor import (
    CapturedOutput,
    ExecutionReport,
    ExecutorEvent,
    ExecutorState,
    NodeCapability,
    UnusedCoresEvent,
)
from arl_cpu.contract.launcher_protocol import (
    FrameReader,
    decode_feed,
    decode_fence,
    decode_resize,
    decode_spec,
    encode_feed_result,
    encode_fence,
    encode_frame,
    encode_output,
    encode_report,
    encode_state,
)
from arl_cpu.launcher.linux.event_loop import EventLoop
from arl_cpu.launcher.server.launcher_node import LauncherNode

__all__ = ["LauncherServer"]

_READ_BYTES = 1 << 20
_BACKLOG = 1024
"""Connections that may wait at once, one for each file operation and socket. The kernel may allow fewer."""
_PEER_CREDENTIALS = struct.Struct("3i")


class LauncherServer:
    """The server of the launcher's socket: requests become calls of the node, and the node's events become frames."""

    def __init__(
        self, loop: EventLoop, node: LauncherNode, capabilities: tuple[NodeCapability, ...], driver: str
    ) -> None:
        self._loop, self._node = loop, node
        self._capabilities, self._driver = capabilities, driver
        self._node_epoch = uuid4()
        self._manager: _ManagerConnection | None = None
        self._output_requests: dict[int, Callable[[], None]] = {}
        """Functions that cancel the manager's pending requests for output, by request id."""
        self._session = ""
        """Token that the manager sends on additional connections, one for each file operation and socket."""
        node.on_event = self._publish

    def listen(self, path: Path) -> None:
        """Listen on a socket that only this user may open. Raises OSError if the path is unusable."""
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._loop.watch(listener.fileno(), lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            connected, _ = listener.accept()
        except OSError:
            return
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        if _PEER_CREDENTIALS.unpack(credentials)[1] != os.geteuid():
            connected.close()
            return
        _ManagerConnection(self._loop, connected, self._serve)

    def _serve(self, connection: "_ManagerConnection", message: Mapping[str, Any]) -> None:
        if message["op"] in ("work", "socket") and message["session"] == self._session:
            self._serve_connection(connection.detach(), message)
            return
        if message["op"] != "hello" and connection is not self._manager:
            raise ValueError("only the manager that sent `hello` may send requests")
        match message["op"]:
            case "hello":
                self._accept_manager(connection, message["id"])
            case "start":
                self._node.start([decode_spec(spec) for spec in message["specs"]])
            case "resize" | "share" | "critical" | "networks":
                self._serve_change(connection, message)
            case "follow" | "unfollow" | "feed":
                self._serve_stream(connection, message)
            case "kill":
                self._node.kill([decode_fence(fence) for fence in message["fences"]])
            case "acknowledge":
                self._node.acknowledge([decode_fence(fence) for fence in message["fences"]])
            case "destroy":
                identifiers = [UUID(identifier) for identifier in message["environments"]]
                self._node.destroy(identifiers, lambda: connection.send({"id": message["id"]}))

    def _serve_connection(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        if message["op"] == "work":
            self._node.start_file_operation(connection, message)
        else:
            self._send_socket(connection, message)

    def _send_socket(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        """Send a socket inside an environment, or the reason why there is none, and close the connection."""
        family = socket.AF_INET6 if message["is_v6"] else socket.AF_INET
        with connection, suppress(OSError):  # the manager has gone
            try:
                with self._node.create_socket(UUID(message["environment"]), family) as created:
                    socket.send_fds(connection, [encode_frame({"ok": {}})], [created.fileno()])
            except EnvironmentSocketError as refused:
                connection.send(encode_frame({"refused": refused.code, "message": str(refused)}))

    def _accept_manager(self, connection: "_ManagerConnection", request_id: int) -> None:
        """Make this connection the manager. A connection that never sends `hello`, such as a probe, changes nothing."""
        if self._manager is not None and self._manager is not connection:
            self._manager.close()
        for withdraw in self._output_requests.values():
            withdraw()
        self._output_requests.clear()
        self._manager = connection
        # The former manager's file operations have no client any more.
        self._node.workers.kill_all()
        self._node.shared_attempts.report_again()
        self._session = str(uuid4())
        for report in self._node.reports:
            connection.send({"id": request_id, "report": encode_report(report)})
        connection.send({"id": request_id, "state": encode_state(self._state()), "session": self._session})

    def _serve_change(self, connection: "_ManagerConnection", message: Mapping[str, Any]) -> None:
        if message["op"] == "networks":
            self._node.set_networks(message["networks"])
            return
        if message["op"] == "share":
            self._node.set_shared_cores(message["cores"])
            return
        if message["op"] == "critical":
            self._node.set_critical({decode_fence(fence): flag for fence, flag in message["changes"]})
            return
        done = self._node.resize([decode_resize(resize) for resize in message["resizes"]])
        connection.send({"id": message["id"], "done": [encode_fence(fence) for fence in done]})

    def _serve_stream(self, connection: "_ManagerConnection", message: Mapping[str, Any]) -> None:
        match message["op"]:
            case "follow":
                self._poll_output(connection, message)
            case "unfollow":
                self._output_requests.pop(message["id"], _do_nothing)()
            case "feed":
                fed = self._node.feed_stdin(**decode_feed(message))
                connection.send({"id": message["id"], "fed": encode_feed_result(fed)})

    def _poll_output(self, connection: "_ManagerConnection", message: Mapping[str, Any]) -> None:
        number = message["id"]

        def answer(output: CapturedOutput | None) -> None:
            """Send the response, and forget the request."""
            self._output_requests.pop(number, None)
            connection.send({"id": number, "output": encode_output(output)})

        self._output_requests[number] = _do_nothing
        withdraw = self._node.poll_output(
            decode_fence(message["fence"]), (message["stdout"], message["stderr"]), answer
        )
        if number in self._output_requests:
            self._output_requests[number] = withdraw

    def _state(self) -> ExecutorState:
        return ExecutorState(
            node_epoch=self._node_epoch,
            environments=self._node.environments,
            running=self._node.running,
            reports=self._node.reports,
            capabilities=self._capabilities,
            driver=self._driver,
        )

    def _publish(self, event: ExecutorEvent) -> None:
        if self._manager is None:
            return
        if isinstance(event, ExecutionReport):
            self._manager.send({"report": encode_report(event)})
        elif isinstance(event, UnusedCoresEvent):
            self._manager.send({"unused_cpu_milli": event.cpu_milli})
        else:
            self._manager.send({"lost": str(event.id), "reason": event.lost_reason})


def _do_nothing() -> None:
    """Cancel nothing: the request was answered at once."""


_MessageHandler = Callable[["_ManagerConnection", Mapping[str, Any]], None]


class _ManagerConnection:
    def __init__(self, loop: EventLoop, connected: socket.socket, serve: "_MessageHandler") -> None:
        self._loop, self._socket, self._serve = loop, connected, serve
        self._frames = FrameReader()
        self._outgoing = bytearray()
        self._is_open = True
        connected.setblocking(False)
        loop.watch(connected.fileno(), self._read)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message and send as much as possible."""
        if self._is_open:
            self._outgoing += encode_frame(message)
            self._write()

    def detach(self) -> socket.socket:
        """Return the socket and stop reading from it."""
        self._is_open = False
        self._loop.unwatch(self._socket.fileno())
        return self._socket

    def close(self) -> None:
        """Close the connection; a second call is harmless."""
        if self._is_open:
            self._is_open = False
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                self.close()
                return
            for message in self._frames.feed(data):
                self._serve(self, message)
                if not self._is_open:
                    return
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            self.close()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._outgoing)
            del self._outgoing[:sent]
        except BlockingIOError:
            pass  # the rest is sent when the manager has read some
        except OSError:
            self.close()
            return
        self._loop.watch_writable(self._socket.fileno(), self._write if self._outgoing else None)
