"""A running action whose cores a benchmark changes, by the internal call of the CPU manager that is the scheduler's."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import httpx

from arl_core.states import State
from arl_tangram.bench.cpu_time import tree_run_s
from arl_tangram.bench.own_system import OwnSystem
from arl_tangram.client import AsyncTangram
from arl_wire.actions import SubmitAction
from arl_wire.errors import Unavailable
from arl_wire.internal import ResizeBatch, ResizeBody, ResizeResponse

__all__ = ["NotResized", "Resized", "resized"]

LOOK_S = 0.01


class NotResized(RuntimeError):
    """It has ended, or there was no room."""


@dataclass(slots=True)
class Resized:
    """A running action, and the manager that changes its cores."""

    manager: httpx.AsyncClient
    node_epoch: UUID
    action: UUID
    grant_no: int
    launcher: int
    seq: int = 0

    async def resize(self, cpu_milli: int) -> float:
        """Seconds until it is confirmed."""
        self.seq += 1
        body = ResizeBody(id=self.action, grant_no=self.grant_no, cpu_milli=cpu_milli, amounts_seq=self.seq)
        batch = ResizeBatch(node_epoch=self.node_epoch, resizes=[body])
        begun = time.monotonic()
        answer = await self.manager.post("/internal/resizes", content=batch.model_dump_json())
        took_s = time.monotonic() - begun
        answer.raise_for_status()
        (said,) = ResizeResponse.model_validate_json(answer.content).answers
        if said.status != "done":
            raise NotResized(f"a resize to {cpu_milli} was answered with {said.status}; nothing is measured")
        return took_s

    def used_s(self) -> float:
        """CPU seconds so far. Nothing else works in the sandboxes of this system."""
        return tree_run_s(self.launcher)


@asynccontextmanager
async def resized(system: OwnSystem, client: AsyncTangram, wanted: SubmitAction) -> AsyncIterator[Resized]:
    """From when on it runs; it is cancelled at the end. The scheduler leaves alone what is not elastic."""
    node = next(iter((await client.nodes()).items))
    action = await client.submit(wanted)
    while (action := await client.get(action.id)).state is not State.RUNNING:
        if action.state is State.SETTLED:
            raise Unavailable(f"the action settled as {action.outcome} ({action.reason})")
        await asyncio.sleep(LOOK_S)
    token = (system.directory / "tokens" / "scheduler").read_text()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=system.url_of("cpu"), headers=headers) as manager:
        yield Resized(manager, node.epoch, action.id, action.grant_no, system.processes()["cpu-launcher"])
    await client.cancel(action.id)
    await client.wait([action.id])
