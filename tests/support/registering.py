"""Registered services without a database: desired services, a reconciler and recording devices."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arl_gpu.catalog.registrations import NO_ENGINES, DesiredService
from arl_gpu.node.service_reconciler import ServiceReconciler
from arl_gpu.worker.client import WorkerDied

__all__ = ["Owner", "carried_out", "carry_out", "registry_of", "wish"]


def wish(name: str, **other: Any) -> DesiredService:
    said: dict[str, Any] = {
        "kind": "similarity",
        "source": name,
        "options": {},
        "pinned": False,
        "registered_at": 1.0,
        "drained_at": None,
        "load_asked": None,
    }
    return DesiredService(name=name, **said | other)


def registry_of(models: Path, *owners: Any, engines: Mapping[str, int] = NO_ENGINES) -> ServiceReconciler:
    return ServiceReconciler(
        [], owners, models, on_response=lambda number, answer: None, is_idle=lambda name: True, engines=engines
    )


class Owner:
    """A device that records its orders; its worker dies on the orders in `deadly`, given as `order name`."""

    def __init__(self, *deadly: str) -> None:
        self._deadly, self.orders = set(deadly), list[str]()
        self.trouble: str | None = None

    async def _do(self, order: str, name: str) -> dict[str, Any]:
        self.orders.append(f"{order} {name}")
        if self.orders[-1] in self._deadly:
            raise WorkerDied("killed")
        return {}

    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        return await self._do("offer", spec["name"])

    async def forget(self, name: str) -> dict[str, Any]:
        return await self._do("forget", name)

    async def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        return await self._do("pin" if on else "unpin", name)

    async def restore(self, name: str) -> dict[str, Any]:
        return await self._do("restore", name)

    async def evict(self, name: str) -> dict[str, Any]:
        answer = await self._do("evict", name)
        return answer if self.trouble is None else {"error": self.trouble, "message": "it stays"}


async def carry_out(registry: ServiceReconciler) -> None:
    await registry.apply_offers()
    await registry.apply_moves()


def carried_out(registry: ServiceReconciler, *wishes: DesiredService) -> None:
    registry.set_desired(wishes, read=registry.begin_read())
    if registry.has_pending_changes:
        asyncio.run(carry_out(registry))
