"""Rows as earlier services would have left them. The database owner may insert any row."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from arl_core.domain.model import Fence
from arl_store.logins import role_url
from arl_store.tx import PostgresStore, open_store
from arl_store.values import uuid7
from support.builders import EPOCH
from support.postgres import PASSWORDS

__all__ = ["Rows", "a_row", "rows_in", "store_of"]

AMOUNTS = {"cpu_milli": 1000, "memory_mib": 100, "disk_mib": 10}


@asynccontextmanager
async def store_of(owner_url: str, role: str) -> AsyncIterator[PostgresStore]:
    """Open the store with the rights of this service role."""
    store = open_store(role_url(owner_url, role, PASSWORDS[role]), name=f"test-{role}", pool_size=8)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def rows_in(owner_url: str) -> AsyncIterator["Rows"]:
    """Yield the database as its owner sees it, with one project and one queue."""
    pool = await asyncpg.create_pool(owner_url, min_size=1, max_size=4)
    try:
        rows = Rows(pool, owner_url)
        rows.project = await rows.value(
            "insert into projects (name) values ('p') on conflict (name) do update set name = 'p' returning id"
        )
        rows.queue = await rows.queue_of("t")
        yield rows
    finally:
        await pool.close()


def a_row(**changed: Any) -> dict[str, Any]:
    """Return an action's columns: queued and ephemeral, or on node 1 under its first grant in other states."""
    row: dict[str, Any] = {"id": uuid7(), "kind": "exec", "state": "queued"}
    if changed.get("state", "queued") != "queued":
        now = datetime.now(UTC)
        row |= {"grant_no": 1, "node_id": 1, "node_epoch": EPOCH, "amounts": AMOUNTS, "granted_at": now}
        if changed["state"] == "settled":
            row["settled_at"] = now
    row |= changed
    if isinstance(row.get("amounts"), Mapping):
        row["amounts"] = json.dumps(row["amounts"])
    return row


@dataclass
class Rows:
    pool: asyncpg.Pool
    owner_url: str
    project: int = 0
    queue: int = 0
    tasks: dict[str, int] = field(default_factory=dict)

    async def value(self, sql: str, *values: Any) -> Any:
        return await self.pool.fetchval(sql, *values)

    async def execute(self, sql: str, *values: Any) -> None:
        await self.pool.execute(sql, *values)

    async def unguarded(self, statement: str, *values: Any) -> None:
        """Execute a statement without triggers, as if another service wrote it. Rights are tested elsewhere."""
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute("set local session_replication_role = replica")
            await connection.execute(statement, *values)

    async def queue_of(self, task: str, project: int | None = None) -> int:
        sql = "insert into queues (project_id, task) values ($1, $2) returning id"
        return int(await self.value(sql, project or self.project, task))

    async def action(
        self,
        *,
        demand: Mapping[str, int] = AMOUNTS,
        elastic: Mapping[str, Any] | None = None,
        scope: str = "ephemeral",
        shape: str = "divisible",
        template: str | None = None,
        snapshot: UUID | None = None,
        names: UUID | None = None,
        argv: tuple[str, ...] = ("true",),
        priority: int = 0,
        timeout_s: float = 300.0,
        payload: Mapping[str, Any] | None = None,
        gang: Mapping[str, Any] | None = None,
        cpu_sharing: Mapping[str, Any] | None = None,
        wall_timeout_s: float | None = None,
        step: int | None = None,
        hints: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> UUID:
        """Insert an action and its spec in one transaction; without a payload it is a command."""
        row = a_row(**{"project_id": self.project, "queue_id": self.queue} | columns)
        environment = {"scope": scope, "template": template, "idle_ttl_s": 3600, "pids": 64} | dict(demand)
        environment |= {"snapshot": str(snapshot)} if snapshot is not None else {}
        environment |= {"id": str(names)} if names is not None else {}
        command = {"argv": argv, "source": None, "stdin": "", "env": {}, "cwd": None, "files": {}, "fetch": []}
        async with self.pool.acquire() as connection, connection.transaction():
            await _insert(connection, "actions", row)
            spec = {"id": row["id"], "class_key": hash((*demand.items(), template)) >> 1, "shape": shape}
            texts = {"demand": demand, "environment": environment, "payload": command if payload is None else payload}
            texts |= {"elastic": elastic} if elastic is not None else {}
            texts |= {"gang": gang} if gang is not None else {}
            texts |= {"hints": hints} if hints is not None else {}
            texts |= {"cpu_sharing": cpu_sharing} if cpu_sharing is not None else {}
            spec |= {name: json.dumps(value) for name, value in texts.items()}
            spec |= {"priority": priority, "timeout_s": timeout_s, "wall_timeout_s": wall_timeout_s, "step": step}
            await _insert(connection, "action_specs", spec)
        return UUID(str(row["id"]))

    async def node(
        self,
        name: str = "n",
        *,
        cores: int = 2,
        memory_mib: int = 10_000,
        epoch: UUID = EPOCH,
        enforced: tuple[str, ...] = (),
        templates: tuple[str, ...] = (),
        beat: str = "1 hour",
    ) -> int:
        """Insert a node whose last heartbeat is this far in the future, so that it lives as long as the test."""
        capacity = {"cpu_milli": cores * 1000, "memory_mib": memory_mib, "disk_mib": memory_mib}
        node_id = await self.value(
            "insert into nodes (name, kind, url, epoch, driver, capacity, enforced, templates)"
            " values ($1, 'cpu', 'http://' || $1, $2, 'simulated', $3, $4, $5) returning id",
            *(name, epoch, json.dumps(capacity)),
            json.dumps([{"name": each, "level": "enforced", "mechanism": "test"} for each in enforced]),
            json.dumps([{"name": each, "digest": "sha256:0", "bytes": 1} for each in templates]),
        )
        sql = "insert into node_beats (node_id, epoch, last_beat) values ($1, $2, now() + $3::text::interval)"
        await self.execute(sql, node_id, epoch, beat)
        # The row belongs to the role of CPU nodes, as if a node had registered.
        await self.execute("update nodes set db_role = current_database() || '_cpu' where id = $1", node_id)
        return int(node_id)

    async def environment(self, trajectory: str, node: int, **columns: Any) -> UUID:
        row = {
            "id": uuid4(),
            "project_id": self.project,
            "queue_id": self.queue,
            "trajectory": trajectory,
            "node_id": node,
            "node_epoch": EPOCH,
            "template": "host",
            "memory_mib": 100,
            "disk_mib": 10,
            "pids": 64,
            "idle_ttl_s": 3600,
        } | columns
        async with self.pool.acquire() as connection:
            await _insert(connection, "environments", row)
        return UUID(str(row["id"]))

    async def of(self, action: UUID) -> asyncpg.Record:
        return await self.pool.fetchrow("select * from actions where id = $1", action)

    async def state(self, action: UUID) -> tuple[str, str | None, str | None]:
        row = await self.of(action)
        return row["state"], row["outcome"], row["reason"]

    async def fence(self, action: UUID) -> Fence:
        return Fence(action, (await self.of(action))["grant_no"])

    async def until(self, condition: Callable[[], Awaitable[Any]], *, timeout_s: float = 10.0) -> None:
        """Poll the condition until it is true, because another task or process writes the rows."""
        async with asyncio.timeout(timeout_s):
            while not await condition():
                await asyncio.sleep(0.01)

    async def until_state(self, action: UUID, state: str, *, timeout_s: float = 10.0) -> asyncpg.Record:
        async def reached() -> bool:
            return (await self.of(action))["state"] == state

        await self.until(reached, timeout_s=timeout_s)
        return await self.of(action)

    async def until_value(self, expected: Any, sql: str, *values: Any, timeout_s: float = 10.0) -> None:
        async def reached() -> bool:
            return bool(await self.value(sql, *values) == expected)

        await self.until(reached, timeout_s=timeout_s)


async def _insert(connection: asyncpg.Connection, table: str, row: Mapping[str, Any]) -> None:
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await connection.execute(f"insert into {table} ({', '.join(row)}) values ({places})", *row.values())
