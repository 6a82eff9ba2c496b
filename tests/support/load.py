"""A continuous load of actions, with a record of how each action first settled."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

import asyncpg

from arl_tangram import AsyncTangram, SubmitActionRequest, exec_action

__all__ = ["Load", "Truth"]

Truth = tuple[str, str | None, int, datetime]
"""The outcome, reason, grant_no and settled_at of an action."""

LOOK_EVERY_S = 0.5
AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
SETTLED = "select id, outcome, reason, grant_no, settled_at from actions where id = any($1) and state = 'settled'"
STEP = """\
import pathlib
done = pathlib.Path("steps")
earlier = done.read_text().split() if done.exists() else []
assert all(int(each) < {step} for each in earlier), earlier
done.write_text(" ".join([*earlier, "{step}"]))
print(done.read_text())
"""
"""A step's source. It writes its number and fails if it runs twice or out of order."""


class Load:
    """A load of actions. `open` are acknowledged but not settled; `truth` has the first settled values."""

    def __init__(self, client: AsyncTangram, database_url: str, random_: random.Random) -> None:
        self._client = client
        self._url = database_url
        self._random = random_
        self._chains: list[int] = []
        self.open: set[UUID] = set()
        self.truth: dict[UUID, Truth] = {}
        self.steps: dict[UUID, tuple[str, int]] = {}

    @property
    def acknowledged(self) -> int:
        return len(self.open) + len(self.truth)

    @property
    def trajectories(self) -> list[str]:
        return [f"t{number}" for number in range(len(self._chains))]

    async def submit(self, *, chains: int, steps: int, lone: int) -> None:
        """Submit new trajectories with this many steps, and independent actions, in one batch."""
        first = len(self._chains)
        self._chains += [steps] * chains
        named = [(f"t{first + chain}", step) for step in range(steps) for chain in range(chains)]
        actions = [
            exec_action(task="chaos", trajectory=name, source=STEP.format(step=step), memory_mib=32, cpu=0.2, retries=2)
            for name, step in named
        ]
        ids = await self._client.submit_many([*actions, *(self._lone() for _ in range(lone))])
        self.open |= set(ids)
        self.steps |= dict(zip(ids, named, strict=False))

    @asynccontextmanager
    async def topped_up(self, least: int) -> AsyncIterator[None]:
        """Keep at least this many actions open during the block; afterwards no request is in flight."""
        done = asyncio.Event()

        async def top_up() -> None:
            while not done.is_set():
                await self.submit(chains=0, steps=0, lone=max(1, least - await self.look()))
                await asyncio.sleep(LOOK_EVERY_S)

        topping_up = asyncio.create_task(top_up())
        try:
            yield
        finally:
            done.set()
            await topping_up

    async def until_open(self, least: int, *, timeout_s: float) -> None:
        """Wait until the rows show at least this many open actions."""
        async with asyncio.timeout(timeout_s):
            while await self.look() < least:
                await asyncio.sleep(LOOK_EVERY_S)

    async def until_all_settled(self, *, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while await self.look():
                await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> int:
        """Read newly settled actions and return the number of open ones. Postgres may be unavailable."""
        while True:
            looked_for = list(self.open)
            try:
                connection = await asyncpg.connect(self._url, timeout=5)
                try:
                    rows = await connection.fetch(SETTLED, looked_for, timeout=10)
                finally:
                    connection.terminate()
            except AWAY:
                await asyncio.sleep(0.05)
                continue
            for row in rows:
                said = (row["outcome"], row["reason"], row["grant_no"], row["settled_at"])
                self.truth.setdefault(row["id"], said)
            self.open -= self.truth.keys()
            return len(self.open)

    async def changed(self) -> Sequence[UUID]:
        """Return the settled actions whose values changed since they were first seen."""
        connection = await asyncpg.connect(self._url)
        try:
            rows = await connection.fetch(SETTLED, list(self.truth))
        finally:
            await connection.close()
        now = {row["id"]: (row["outcome"], row["reason"], row["grant_no"], row["settled_at"]) for row in rows}
        return [id for id, said in self.truth.items() if now.get(id) != said]

    def _lone(self) -> SubmitActionRequest:
        seconds = self._random.choices(("0.01", "0.3", "1.5"), (6, 3, 1))[0]
        argv = ["sleep", seconds]
        return exec_action(task="chaos", argv=argv, memory_mib=32, cpu=self._random.choice((0.1, 0.2)), retries=5)
