"""Chunks on a worker's stream are complete or recognisably truncated."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from arl_cpu.contract.launcher_client import LauncherFileOperation
from arl_cpu.launcher.files.file_tree import FileAccessError
from arl_cpu.launcher.files.worker_stream import ABORTED_LENGTH, CHUNK_LENGTH, MAX_CHUNK, WorkerStream


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class Interrupted(socket.socket):
    """A socket whose stream is interrupted in the middle of every write."""

    peer: WorkerStream

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
        super().sendall(data[:3])
        self.peer.interrupt(FileAccessError("time", "it is up"))
        super().sendall(data[3:])


def test_interruption_waits_for_end_of_chunk(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    with Interrupted(fileno=theirs.detach()) as interrupted:
        interrupted.peer = peer = WorkerStream(interrupted)
        with pytest.raises(FileAccessError, match="up"), peer.output_stream() as output:
            output.write(b"chunk")
    assert ours.recv(100) == CHUNK_LENGTH.pack(5) + b"chunk"


def test_truncated_chunk_ends_the_stream(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    peer = WorkerStream(theirs)
    theirs.settimeout(0.1)
    with pytest.raises(TimeoutError), peer.output_stream() as output:
        output.write(bytes(8 << 20))
    peer.send_error("time", "it is up")
    size = 0
    while data := ours.recv(1 << 20):
        size += len(data)
    assert size % (CHUNK_LENGTH.size + MAX_CHUNK) != 0


@pytest.mark.parametrize("length", [MAX_CHUNK + 1, ABORTED_LENGTH - 1])
async def test_invalid_chunk_length_raises_connection_error(length: int) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(CHUNK_LENGTH.pack(length))

    async def nothing() -> None:
        pass

    ours, theirs = socket.socketpair()
    with theirs:
        _, writer = await asyncio.open_unix_connection(sock=ours)
        with pytest.raises(ConnectionError, match="invalid message"):
            [_ async for _ in LauncherFileOperation(reader, writer, nothing).output()]
        writer.close()
