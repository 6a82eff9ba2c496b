"""SDK clients across forks, event loops, threads and pickling, and without proxies for localhost."""

import asyncio
import gc
import json
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import pytest

from arl_tangram import AsyncTangram, Tangram

CHILDREN, CALLS = 4, 30


class Echo(BaseHTTPRequestHandler):
    """A fake gateway that returns an action with the requested id."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        action = {"id": self.path.rpartition("/")[2], "task": "t", "kind": "exec", "state": "queued"}
        action |= {"created_at": "2026-01-01T00:00:00Z", "priority": "0"}
        content = json.dumps(action).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_forked_processes_read_only_their_own_responses(url: str) -> None:
    with Tangram(url, "tk_x") as tangram:
        tangram.get(UUID(int=0))
        children = [_forked(tangram, number) for number in range(1, CHILDREN + 1)]
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * CHILDREN
        assert tangram.get(UUID(int=1)).id == UUID(int=1)


def _forked(tangram: Tangram, number: int) -> int:
    child = os.fork()
    if child == 0:
        wanted = [UUID(int=number << 32 | call) for call in range(CALLS)]
        os._exit(0 if [tangram.get(id).id for id in wanted] == wanted else 1)
    return child


def test_forked_client_does_not_disturb_parent_event_loop(url: str) -> None:
    tangram = AsyncTangram(url, "tk_x", retry_timeout_s=1)

    async def ask(number: int) -> int:
        return (await tangram.get(UUID(int=number))).id.int

    async def ask_and_close(number: int) -> int:
        async with tangram:
            return await ask(number)

    with asyncio.Runner() as parent:
        assert parent.run(ask(1)) == 1
        child = os.fork()
        if child == 0:
            asyncio.set_event_loop(None)
            found = asyncio.run(ask_and_close(2))
            gc.collect()
            os._exit(0 if found == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert parent.run(asyncio.wait_for(ask(3), 5)) == 3
        parent.run(tangram.close())


def test_ended_event_loops_leave_no_open_connections(url: str) -> None:
    tangram = AsyncTangram(url, "tk_x")

    async def ask() -> None:
        await asyncio.gather(*(tangram.get(UUID(int=at)) for at in range(4)))

    async def close() -> None:
        async with tangram:
            await ask()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(ask())
        few = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            asyncio.run(ask())
        asyncio.run(close())
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= few + 4


def test_async_client_works_in_successive_and_threaded_event_loops(url: str) -> None:
    tangram = AsyncTangram(url, "tk_x")

    async def ask(number: int) -> int:
        async with tangram:
            found = await asyncio.gather(*(tangram.get(UUID(int=number + at)) for at in range(3)))
        return sum(action.id.int for action in found)

    assert [asyncio.run(ask(0)), asyncio.run(ask(10))] == [3, 33]
    found: list[int] = []
    threads = [threading.Thread(target=lambda at=at: found.append(asyncio.run(ask(10 * at)))) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [3, 33, 63]


def test_client_can_be_pickled_and_used(url: str) -> None:
    with pickle.loads(pickle.dumps(Tangram(url, "tk_x"))) as tangram:
        assert tangram.get(UUID(int=7)).id == UUID(int=7)
    sent: AsyncTangram = pickle.loads(pickle.dumps(AsyncTangram(url, "tk_x")))

    async def ask() -> UUID:
        async with sent:
            return (await sent.get(UUID(int=7))).id

    assert asyncio.run(ask()) == UUID(int=7)


def test_proxy_variable_is_ignored_for_localhost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Tangram(url, "tk_x", retry_timeout_s=0.1) as tangram:
        assert tangram.get(UUID(int=3)).id == UUID(int=3)

    async def ask() -> None:
        async with AsyncTangram(url, "tk_x", retry_timeout_s=0.1) as tangram:
            assert (await tangram.get(UUID(int=4))).id == UUID(int=4)

    asyncio.run(ask())
