"""The manager's side of the launcher's socket."""

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

from arl_core.fence import Fence
from arl_cpu.executor import (
    EnvironmentStatus,
    Event,
    ExecSpec,
    ExecutorState,
    Fed,
    Output,
    Resize,
    Work,
    WorkRefused,
)

from .launcher.protocol import (
    FrameReader,
    encode_frame,
    fed_from,
    feed_to,
    fence_from,
    fence_to,
    output_from,
    report_from,
    resize_to,
    spec_to,
    state_from,
)
from .launcher.work_stream import BROKEN_OFF, CHUNK_LENGTH, MAX_ANSWER, MAX_CHUNK

__all__ = ["LauncherClient", "LauncherWork"]

_CHUNK = 1 << 20
_CONNECTS_WITHIN_S, _TRY_AGAIN_S = 5.0, 0.01


class LauncherClient:
    """An `Executor` whose attempts live in the launcher: they outlive this object and its process."""

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        self._connection: _Connection | None = None
        self._session = ""

    async def connect(self) -> ExecutorState:
        """Take over the launcher; whoever was connected before is cut off. Call it again after a loss."""
        await self.close()
        reader, writer = await _connected(self._path)
        self._connection = _Connection(reader, writer)
        answer = await self._connection.ask({"op": "hello"})
        self._session = answer["session"]
        return state_from(answer["state"], answer["reports"])

    async def start(self, specs: Sequence[ExecSpec]) -> None:
        # One frame each: a specification may be tens of megabytes, and a frame is bounded.
        for spec in specs:
            await self._open().tell({"op": "start", "specs": [spec_to(spec)]})

    async def resize(self, resizes: Sequence[Resize]) -> frozenset[Fence]:
        answer = await self._open().ask({"op": "resize", "resizes": [resize_to(resize) for resize in resizes]})
        return frozenset(fence_from(fence) for fence in answer["done"])

    async def work(self, fence: Fence, environment: UUID, asked: Mapping[str, Any]) -> Work:
        """On a connection of its own, whose other end is the very process that does it."""
        reader, writer = await _connected(self._path)
        said = {"fence": fence_to(fence), "environment": str(environment), "work": dict(asked)}
        writer.write(encode_frame({"op": "work", "session": self._session, **said}))
        return LauncherWork(reader, writer, lambda: self.kill([fence]))

    async def kill(self, fences: Sequence[Fence]) -> None:
        await self._open().tell({"op": "kill", "fences": [fence_to(fence) for fence in fences]})

    async def follow(self, fence: Fence, *, stdout: int, stderr: int) -> Output | None:
        question = {"op": "follow", "fence": fence_to(fence), "stdout": stdout, "stderr": stderr}
        answer = await self._open().ask(question, withdrawal={"op": "unfollow"})
        return output_from(answer["output"])

    async def feed(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> Fed:
        answer = await self._open().ask({"op": "feed", **feed_to(fence, data, offset=offset, end=end)})
        return fed_from(answer["fed"])

    async def destroy(self, environments: Sequence[UUID]) -> None:
        await self._open().ask({"op": "destroy", "environments": [str(each) for each in environments]})

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        await self._open().tell({"op": "acknowledge", "fences": [fence_to(fence) for fence in fences]})

    async def events(self) -> AsyncIterator[Event]:
        connection = self._open()
        while (event := await connection.events.get()) is not None:
            yield event
        connection.events.put_nowait(None)
        raise ConnectionError("the launcher closed the connection")

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    def _open(self) -> "_Connection":
        if self._connection is None:
            raise ConnectionError("not connected to the launcher")
        return self._connection


async def _connected(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Tries again while it is only starting, and while more wait for it than it has room for, which asyncio takes for
    connected."""
    tries_until = time.monotonic() + _CONNECTS_WITHIN_S
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.setblocking(False)
    try:
        while True:
            try:
                connecting.connect(str(path))
                break
            except (BlockingIOError, FileNotFoundError, ConnectionRefusedError) as error:
                if time.monotonic() > tries_until:
                    raise ConnectionError(f"the launcher takes no connection: {error.strerror}") from None
                await asyncio.sleep(_TRY_AGAIN_S)
        return await asyncio.open_unix_connection(sock=connecting, limit=_CHUNK)
    except BaseException:
        connecting.close()
        raise


class LauncherWork:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kill: Callable[[], Awaitable[None]]
    ) -> None:
        self._reader, self._writer, self._kill = reader, writer, kill

    async def answer(self) -> Mapping[str, Any]:
        message = json.loads(await self._exactly(await self._length(), at_most=MAX_ANSWER))
        if "refused" in message:
            raise WorkRefused(message["refused"], message["message"])
        ok: Mapping[str, Any] = message["ok"]
        return ok

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._writer.write(CHUNK_LENGTH.pack(len(view[:MAX_CHUNK])) + view[:MAX_CHUNK])
            await self._writer.drain()
            view = view[MAX_CHUNK:]
        if not data:
            self._writer.write(CHUNK_LENGTH.pack(0))

    async def output(self) -> AsyncIterator[bytes]:
        while size := await self._length():
            if size == BROKEN_OFF:
                await self.answer()
                return
            yield await self._exactly(size, at_most=MAX_CHUNK)

    async def close(self) -> None:
        """The launcher holds the other end until it has reaped the process."""
        with suppress(OSError):
            # The kill comes on another connection, and may come before the work: then this ends that.
            self._writer.write_eof()
            await self._kill()
            while await self._reader.read(_CHUNK):
                pass
        self._writer.close()

    async def _length(self) -> int:
        size: int = CHUNK_LENGTH.unpack(await self._exactly(CHUNK_LENGTH.size, at_most=MAX_CHUNK))[0]
        return size

    async def _exactly(self, size: int, *, at_most: int) -> bytes:
        if size > at_most:
            raise ConnectionError("what is at work on the files says what cannot be understood")
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionError("what was at work on the files has ended") from None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._parts: dict[int, list[dict[str, Any]]] = {}
        """Reports that precede the answer to `hello`, each a frame of its own."""
        self._reading = asyncio.create_task(self._read())

    async def tell(self, message: Mapping[str, Any]) -> None:
        if self._reading.done():
            raise ConnectionError("the launcher closed the connection")
        self._writer.write(encode_frame(message))
        await self._writer.drain()

    async def ask(
        self, message: Mapping[str, Any], *, withdrawal: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """A question that is cancelled is withdrawn, where there is a way to say so."""
        number = next(self._numbers)
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await self.tell({**message, "id": number})
            return await answer
        except asyncio.CancelledError:
            if withdrawal is not None and not self._reading.done():
                self._writer.write(encode_frame({**withdrawal, "id": number}))
            raise
        finally:
            self._answers.pop(number, None)

    async def close(self) -> None:
        self._writer.close()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        frames = FrameReader()
        try:
            while data := await self._reader.read(_CHUNK):
                for message in frames.feed(data):
                    self._receive(message)
        except (OSError, ValueError):
            pass  # a reset, or what is no frame, is an end like any other; it is told below
        finally:
            self._writer.close()
            self.events.put_nowait(None)
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the launcher closed the connection"))

    def _receive(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"id": number, "report": report}:
                self._parts.setdefault(number, []).append(report)
            case {"report": report}:
                self.events.put_nowait(report_from(report))
            case {"lost": identifier, "reason": reason}:
                self.events.put_nowait(EnvironmentStatus(id=UUID(identifier), lost_reason=reason))
            case {"id": number}:
                answer = self._answers.get(number)
                if answer is not None and not answer.done():
                    answer.set_result({**message, "reports": self._parts.pop(number, [])})
