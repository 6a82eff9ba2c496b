"""The manager's client for the launcher's socket."""

import asyncio
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from arl_core.domain.model import Fence
from arl_cpu.contract.environment_access import EnvironmentSocketError, FileOperation, FileOperationError
from arl_cpu.contract.executor import (
    AttemptResize,
    CapturedOutput,
    EnvironmentLostEvent,
    ExecSpec,
    ExecutorEvent,
    ExecutorState,
    FeedResult,
    NetworkVersion,
    UnusedCoresEvent,
)
from arl_cpu.contract.launcher_protocol import (
    FrameReader,
    decode_feed_result,
    decode_fence,
    decode_output,
    decode_report,
    decode_state,
    encode_feed,
    encode_fence,
    encode_frame,
    encode_resize,
    encode_spec,
)
from arl_cpu.launcher.files.worker_stream import ABORTED_LENGTH, CHUNK_LENGTH, MAX_CHUNK, MAX_RESPONSE

__all__ = ["LauncherClient", "LauncherFileOperation"]

_READ_BYTES = 1 << 20
_CONNECT_TIMEOUT_S, _RETRY_DELAY_S = 5.0, 0.01


class LauncherClient:
    """An `Executor` whose attempts run in the launcher. They survive this object and its process."""

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        self._connection: _LauncherConnection | None = None
        self._session = ""

    async def connect(self) -> ExecutorState:
        """Connect to the launcher and disconnect the previous client. Call it again after a lost connection."""
        await self.close()
        reader, writer = await _connect(self._path)
        self._connection = _LauncherConnection(reader, writer)
        answer = await self._connection.request({"op": "hello"})
        self._session = answer["session"]
        return decode_state(answer["state"], answer["reports"])

    async def start(self, specs: Sequence[ExecSpec]) -> None:
        """Start attempts. Raises `ConnectionError` if the launcher is not connected."""
        # Send each specification in its own frame: one may have tens of megabytes, and a frame is bounded.
        for spec in specs:
            await self._require_connection().send({"op": "start", "specs": [encode_spec(spec)]})

    async def resize(self, resizes: Sequence[AttemptResize]) -> frozenset[Fence]:
        """Resize attempts and wait for the launcher's confirmation."""
        answer = await self._require_connection().request(
            {"op": "resize", "resizes": [encode_resize(resize) for resize in resizes]}
        )
        return frozenset(decode_fence(fence) for fence in answer["done"])

    async def set_shared_cores(self, cores: Sequence[int]) -> None:
        """Send the cores. The launcher handles messages in their order."""
        await self._require_connection().send({"op": "share", "cores": list(cores)})

    async def set_critical(self, changes: Mapping[Fence, bool]) -> None:
        """Send the changes. The launcher handles messages in their order."""
        entries = [[encode_fence(fence), is_critical] for fence, is_critical in changes.items()]
        await self._require_connection().send({"op": "critical", "changes": entries})

    async def set_networks(self, networks: Mapping[UUID, NetworkVersion]) -> None:
        """Send the networks. The launcher handles messages in their order."""
        entries = {str(id): [each.version, each.network] for id, each in networks.items()}
        await self._require_connection().send({"op": "networks", "networks": entries})

    async def start_file_operation(self, fence: Fence, environment: UUID, request: Mapping[str, Any]) -> FileOperation:
        """Start the operation on a new connection. The launcher passes that connection to the worker process."""
        reader, writer = await _connect(self._path)
        said = {"fence": encode_fence(fence), "environment": str(environment), "work": dict(request)}
        writer.write(encode_frame({"op": "work", "session": self._session, **said}))
        return LauncherFileOperation(reader, writer, lambda: self.kill([fence]))

    async def create_socket(self, environment: UUID, family: socket.AddressFamily) -> socket.socket:
        """Return a socket that the launcher creates inside the environment. Raises EnvironmentSocketError."""
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            connection = await _open_connection(self._path)
            with connection:
                asked = {"environment": str(environment), "is_v6": family == socket.AF_INET6}
                # A new socket's buffer has room for it.
                connection.send(encode_frame({"op": "socket", "session": self._session, **asked}))
                return await _receive_socket(connection)

    async def kill(self, fences: Sequence[Fence]) -> None:
        """Kill attempts; each still reports."""
        await self._require_connection().send({"op": "kill", "fences": [encode_fence(fence) for fence in fences]})

    async def poll_output(self, fence: Fence, *, stdout: int, stderr: int) -> CapturedOutput | None:
        """Wait for output beyond the offsets, or for the end of the attempt."""
        question = {"op": "follow", "fence": encode_fence(fence), "stdout": stdout, "stderr": stderr}
        answer = await self._require_connection().request(question, cancellation={"op": "unfollow"})
        return decode_output(answer["output"])

    async def feed_stdin(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> FeedResult:
        """Append input to a running attempt."""
        answer = await self._require_connection().request(
            {"op": "feed", **encode_feed(fence, data, offset=offset, end=end)}
        )
        return decode_feed_result(answer["fed"])

    async def destroy(self, environments: Sequence[UUID]) -> None:
        """Destroy environments and wait until all their processes have ended."""
        await self._require_connection().request(
            {"op": "destroy", "environments": [str(each) for each in environments]}
        )

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        """Delete reports that are durable elsewhere."""
        await self._require_connection().send(
            {"op": "acknowledge", "fences": [encode_fence(fence) for fence in fences]}
        )

    async def events(self) -> AsyncIterator[ExecutorEvent]:
        """Yield events until the launcher closes the connection, then raise `ConnectionError`."""
        connection = self._require_connection()
        while (event := await connection.events.get()) is not None:
            yield event
        connection.events.put_nowait(None)
        raise ConnectionError("the launcher closed the connection")

    async def close(self) -> None:
        """Close the connection; attempts continue in the launcher."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    def _require_connection(self) -> "_LauncherConnection":
        if self._connection is None:
            raise ConnectionError("the launcher is not connected")
        return self._connection


async def _connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connected = await _open_connection(path)
    try:
        return await asyncio.open_unix_connection(sock=connected, limit=_READ_BYTES)
    except BaseException:
        connected.close()
        raise


async def _open_connection(path: Path) -> socket.socket:
    """Connect, and retry while the launcher starts or its backlog is full.

    asyncio would treat a full backlog as connected.
    """
    tries_until = time.monotonic() + _CONNECT_TIMEOUT_S
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.setblocking(False)
    try:
        while True:
            try:
                connecting.connect(str(path))
                return connecting
            except (BlockingIOError, FileNotFoundError, ConnectionRefusedError) as error:
                if time.monotonic() > tries_until:
                    raise ConnectionError(f"the launcher does not accept the connection: {error.strerror}") from None
                await asyncio.sleep(_RETRY_DELAY_S)
    except BaseException:
        connecting.close()
        raise


async def _receive_socket(connection: socket.socket) -> socket.socket:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    # The launcher sends all of it at once.
    data, files, _, _ = socket.recv_fds(connection, _READ_BYTES, 1)
    for message in FrameReader().feed(data):
        if "refused" in message:
            raise EnvironmentSocketError(message["refused"], message["message"])
        created = socket.socket(fileno=files[0])
        created.set_inheritable(False)
        created.setblocking(False)
        return created
    raise ConnectionError("the launcher closed the connection")


class LauncherFileOperation:
    """A `FileOperation` on a connection to the launcher's worker process."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kill: Callable[[], Awaitable[None]]
    ) -> None:
        self._reader, self._writer, self._kill = reader, writer, kill

    async def read_response(self) -> Mapping[str, Any]:
        """Return the next response. Raises `FileOperationError` and `ConnectionError`."""
        message = json.loads(await self._read_exactly(await self._read_length(), max_bytes=MAX_RESPONSE))
        if "refused" in message:
            raise FileOperationError(message["refused"], message["message"])
        ok: Mapping[str, Any] = message["ok"]
        return ok

    async def send(self, data: bytes) -> None:
        """Send input in chunks. Empty data marks the end."""
        view = memoryview(data)
        while view:
            self._writer.write(CHUNK_LENGTH.pack(len(view[:MAX_CHUNK])) + view[:MAX_CHUNK])
            await self._writer.drain()
            view = view[MAX_CHUNK:]
        if not data:
            self._writer.write(CHUNK_LENGTH.pack(0))

    async def output(self) -> AsyncIterator[bytes]:
        """Yield the output in chunks until its end. Raises `FileOperationError` and `ConnectionError`."""
        while size := await self._read_length():
            if size == ABORTED_LENGTH:
                await self.read_response()
                return
            yield await self._read_exactly(size, max_bytes=MAX_CHUNK)

    async def close(self) -> None:
        """End the operation and wait until the launcher has reaped the worker, which closes its end of the socket."""
        with suppress(OSError):
            # The kill uses another connection and may arrive before the operation; in that case this end of file ends
            # it.
            self._writer.write_eof()
            await self._kill()
            while await self._reader.read(_READ_BYTES):
                pass
        self._writer.close()

    async def _read_length(self) -> int:
        size: int = CHUNK_LENGTH.unpack(await self._read_exactly(CHUNK_LENGTH.size, max_bytes=MAX_CHUNK))[0]
        return size

    async def _read_exactly(self, size: int, *, max_bytes: int) -> bytes:
        if size > max_bytes:
            raise ConnectionError("the process of the file operation sent an invalid message")
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionError("the process of the file operation has ended") from None


class _LauncherConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.events: asyncio.Queue[ExecutorEvent | None] = asyncio.Queue()
        self._reader, self._writer = reader, writer
        self._request_ids = itertools.count(1)
        self._responses: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._reports: dict[int, list[dict[str, Any]]] = {}
        """Reports by request id. They precede the response to `hello`, each in its own frame."""
        self._read_task = asyncio.create_task(self._read())

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises `ConnectionError` if the connection is closed."""
        if self._read_task.done():
            raise ConnectionError("the launcher closed the connection")
        self._writer.write(encode_frame(message))
        await self._writer.drain()

    async def request(
        self, message: Mapping[str, Any], *, cancellation: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Send a request and return the response.

        If the caller is cancelled, send `cancellation` to withdraw the request.
        """
        number = next(self._request_ids)
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._responses[number] = answer
        try:
            await self.send({**message, "id": number})
            return await answer
        except asyncio.CancelledError:
            if cancellation is not None and not self._read_task.done():
                self._writer.write(encode_frame({**cancellation, "id": number}))
            raise
        finally:
            self._responses.pop(number, None)

    async def close(self) -> None:
        """Close the connection and wait until the reader has ended."""
        self._writer.close()
        self._read_task.cancel()
        await asyncio.wait([self._read_task])

    async def _read(self) -> None:
        frames = FrameReader()
        try:
            while data := await self._reader.read(_READ_BYTES):
                for message in frames.feed(data):
                    self._receive(message)
        except (OSError, ValueError):
            pass  # a reset or an invalid frame ends the connection; `finally` reports it
        finally:
            self._writer.close()
            self.events.put_nowait(None)
            for answer in self._responses.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the launcher closed the connection"))

    def _receive(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"id": number, "report": report}:
                self._reports.setdefault(number, []).append(report)
            case {"report": report}:
                self.events.put_nowait(decode_report(report))
            case {"lost": identifier, "reason": reason}:
                self.events.put_nowait(EnvironmentLostEvent(id=UUID(identifier), lost_reason=reason))
            case {"unused_cpu_milli": cpu_milli}:
                self.events.put_nowait(UnusedCoresEvent(cpu_milli))
            case {"id": number}:
                answer = self._responses.get(number)
                if answer is not None and not answer.done():
                    answer.set_result({**message, "reports": self._reports.pop(number, [])})
