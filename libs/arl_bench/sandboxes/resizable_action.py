"""A running action whose cores a benchmark changes with the CPU manager's internal call that the scheduler uses."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import httpx

from arl_bench.harness.bench_system import BenchSystem
from arl_bench.harness.process_usage import tree_run_s
from arl_core.domain.states import ActionState
from arl_kit.service_tokens import TokenIssuer, node_audience
from arl_tangram.async_client import AsyncTangram
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.errors import Unavailable
from arl_wire.internal.node import ResizeBatchRequest, ResizeBatchResponse, ResizePayload

__all__ = ["ResizableAction", "ResizeFailed", "running_resizable_action"]

POLL_INTERVAL_S = 0.01


class ResizeFailed(RuntimeError):
    """The action has ended, or no cores were free."""


@dataclass(slots=True)
class ResizableAction:
    """A running action, and the manager that changes its cores."""

    manager: httpx.AsyncClient
    node_epoch: UUID
    action: UUID
    grant_no: int
    launcher_pid: int
    seq: int = 0

    async def resize(self, cpu_milli: int) -> float:
        """Resize the action and return the seconds until the confirmation."""
        self.seq += 1
        body = ResizePayload(id=self.action, grant_no=self.grant_no, cpu_milli=cpu_milli, amounts_seq=self.seq)
        batch = ResizeBatchRequest(node_epoch=self.node_epoch, resizes=[body])
        begun = time.monotonic()
        answer = await self.manager.post("/internal/resizes", content=batch.model_dump_json())
        took_s = time.monotonic() - begun
        answer.raise_for_status()
        (said,) = ResizeBatchResponse.model_validate_json(answer.content).answers
        if said.status != "done":
            raise ResizeFailed(f"a resize to {cpu_milli} was answered with {said.status}; nothing is measured")
        return took_s

    def cpu_used_s(self) -> float:
        """Return the CPU seconds used so far. Nothing else runs in the sandboxes of this system."""
        return tree_run_s(self.launcher_pid)


@asynccontextmanager
async def running_resizable_action(
    system: BenchSystem, client: AsyncTangram, request: SubmitActionRequest
) -> AsyncIterator[ResizableAction]:
    """Submit an action, wait until it runs, and cancel it at the end. The scheduler never resizes inelastic actions."""
    node = next(iter((await client.nodes()).items))
    action = await client.submit(request)
    while (action := await client.get(action.id)).state is not ActionState.RUNNING:
        if action.state is ActionState.SETTLED:
            raise Unavailable(f"the action settled as {action.outcome} ({action.reason})")
        await asyncio.sleep(POLL_INTERVAL_S)
    tokens, audience = TokenIssuer("scheduler", _scheduler_secret(system)), node_audience(node.name)

    def sign(request: httpx.Request) -> httpx.Request:
        """Add the scheduler's token for this node. It is renewed before it expires."""
        request.headers["Authorization"] = f"Bearer {tokens.token_for(audience)}"
        return request

    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=system.service_url("cpu"), headers=headers, auth=sign) as manager:
        yield ResizableAction(manager, node.epoch, action.id, action.grant_no, system.process_pids()["cpu-launcher"])
    await client.cancel(action.id)
    await client.wait([action.id])


def _scheduler_secret(system: BenchSystem) -> str:
    return (system.directory / "tokens" / "scheduler").read_text()
