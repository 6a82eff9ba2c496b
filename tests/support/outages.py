"""Outages of a node: a network that drops everything between it and Postgres, and the state after the recovery."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import httpx

from arl_local.postgres.embedded_postgres import EmbeddedPostgres, run_server
from arl_wire.admin.consistency import ConsistencyReport
from support.postgres import FAST, in_memory
from support.rows import Rows
from support.system import System

__all__ = [
    "PostgresLink",
    "State",
    "StoppablePostgres",
    "audit_when_idle",
    "postgres_link",
    "restarting",
    "spooled_files",
    "stoppable_postgres",
    "submit",
    "until_states",
    "waits_for",
]

BLOCK_BYTES = 1 << 16
DEMAND = {"cpu": 0.25, "memory_mib": 64}
State = tuple[str, str | None, str | None, int]
"""State, outcome, reason and number of grants."""


class PostgresLink:
    """A TCP proxy in front of Postgres.

    While it is cut, connections stay open and everything that is sent is lost.
    """

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    def url(self, direct_url: str) -> str:
        """Return the URL of the same database and role through this proxy."""
        parts = urlsplit(direct_url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit((parts.scheme, f"{login}@127.0.0.1:{self.port}", parts.path, "", ""))

    def cut(self) -> None:
        self._is_open.clear()

    def restore(self) -> None:
        self._is_open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._is_open.wait()
            server_reader, server_writer = await asyncio.open_unix_connection(str(self._socket_path))
            try:
                await asyncio.gather(self._pump(reader, server_writer), self._pump(server_reader, writer))
            finally:
                server_writer.close()
        except (OSError, asyncio.CancelledError):
            pass  # an end that the other side sees
        finally:
            writer.close()
            self._tasks.discard(task)

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(BLOCK_BYTES):
            if not self._is_open.is_set():
                await self._is_open.wait()
                raise ConnectionResetError("data was lost while the link was cut")
            writer.write(data)
            await writer.drain()
        await self._is_open.wait()
        writer.close()


class StoppablePostgres:
    """A temporary server that can be stopped and started again."""

    def __init__(self, directory: Path, root_base_dir: Path) -> None:
        self._directory, self._root_base_dir = directory, root_base_dir
        self._running = AsyncExitStack()

    async def start(self) -> EmbeddedPostgres:
        return await self._running.enter_async_context(
            run_server(self._directory, settings=FAST, root_base_dir=self._root_base_dir)
        )

    async def stop(self) -> None:
        await self._running.aclose()


@asynccontextmanager
async def stoppable_postgres() -> AsyncIterator[tuple[StoppablePostgres, EmbeddedPostgres]]:
    """Run a temporary server like `fast_postgres`. Yield its switch and the server."""
    place = in_memory()
    directory, homes = Path(tempfile.mkdtemp(prefix="tangram-test-", dir=place)), place / "tangram-homes"
    switch = StoppablePostgres(directory, homes)
    try:
        yield switch, await switch.start()
    finally:
        await switch.stop()
        EmbeddedPostgres(directory, root_base_dir=homes).purge()
        shutil.rmtree(directory)


@asynccontextmanager
async def postgres_link(owner_url: str) -> AsyncIterator[PostgresLink]:
    """Run a proxy in front of the server of this URL, which must listen on a Unix socket."""
    directory = Path(parse_qs(urlsplit(owner_url).query)["host"][0])
    [socket_path] = (path for path in directory.glob(".s.PGSQL.*") if path.suffix != ".lock")
    link = PostgresLink(socket_path)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        await link.stop()


@asynccontextmanager
async def restarting(system: System, *names: str) -> AsyncIterator[None]:
    """Start these processes again whenever they end, as a supervisor does; at the end wait until all are ready."""

    async def keep(name: str) -> None:
        while True:
            try:
                await system.start(name)
            except RuntimeError:
                continue  # it ended
            except TimeoutError:
                system.kill(name)
            else:
                return

    tasks = [asyncio.create_task(keep(name)) for name in names]
    try:
        yield
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
    finally:
        for task in tasks:
            task.cancel()


def waits_for(release: Path, said: str = "done") -> Sequence[str]:
    """Return a command that prints a text and ends once the file exists."""
    return ["sh", "-c", f"until test -e {release}; do sleep 0.05; done; echo {said}"]


def spooled_files(system: System) -> list[Path]:
    """Return the results that the nodes have written to disk."""
    return list((system.directory / "spool").glob("*/*.result"))


async def submit(client: httpx.AsyncClient, actions: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Submit these actions in order and return their ids. Commands get a small demand."""
    ids = {}
    for name, action in actions.items():
        demand = {} if action.get("kind") == "call" else {"demand": DEMAND}
        answer = await client.post("/v1/actions", json={"task": "t"} | demand | action)
        assert answer.is_success, answer.text
        ids[name] = answer.json()["id"]
    return ids


async def until_states(rows: Rows, ids: dict[str, str], expected: dict[str, State], *, timeout_s: float = 30) -> None:
    found: dict[str, State] = {}

    async def reached() -> bool:
        for name in expected:
            row = await rows.pool.fetchrow("select * from actions where id = $1", ids[name])
            found[name] = (row["state"], row["outcome"], row["reason"], row["grant_no"])
        return found == expected

    try:
        await rows.until(reached, timeout_s=timeout_s)
    except TimeoutError:
        raise AssertionError(f"{found} instead of {expected}") from None


async def audit_when_idle(client: httpx.AsyncClient) -> ConsistencyReport:
    """Return the consistency check once no action has resources and no environment lives."""
    async with asyncio.timeout(30):
        while True:
            audit = ConsistencyReport.model_validate_json((await client.get("/v1/admin/consistency")).content)
            if not any(entry.allocated for entry in audit.allocations) and not any(
                node.environments for node in audit.nodes
            ):
                return audit
            await asyncio.sleep(0.05)
