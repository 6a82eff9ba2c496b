"""Test that an interrupted demo waits until every rollout has ended."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arl_bench.demo import run as demo_run
from arl_tangram import AsyncTangram


class IdleClient:
    """A client of a system with one node and without reward services."""

    async def reward_services(self) -> list[Any]:
        return []

    async def nodes(self) -> Any:
        return SimpleNamespace(items=[SimpleNamespace(alive=True, capacity={"memory_mib": 1 << 20})])


async def test_cancelled_demo_waits_until_every_rollout_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = list[int](), list[int]()

    async def rollout(client: object, judge: object, plan: int, **options: object) -> None:
        begun.append(plan)
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10 * plan):  # the later ones take longer to end their environment
                await asyncio.sleep(0)
            ended.append(plan)

    monkeypatch.setattr(demo_run, "run_rollout", rollout)
    plans, client = cast("Any", [0, 1, 2]), cast("AsyncTangram", IdleClient())
    demo = asyncio.create_task(
        demo_run.run_demo(client, plans, on_action=lambda _action: None, on_rollout=lambda _rollout: None)
    )
    while len(begun) < 3:
        await asyncio.sleep(0)
    demo.cancel()
    with pytest.raises(asyncio.CancelledError):
        await demo
    assert ended == [0, 1, 2]
