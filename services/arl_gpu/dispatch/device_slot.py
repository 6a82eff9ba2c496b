"""A device's worker, and the last known state of both."""

import asyncio
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from arl_core.residency.occupancy import ResidencyState
from arl_gpu.dispatch.device_groups import GroupMember
from arl_gpu.queue.batch_scheduler import Batch

__all__ = ["DeviceSlot", "DeviceWorker"]

ON_DEVICE_STATES = (ResidencyState.RESTORING, ResidencyState.RESIDENT)


class DeviceWorker(GroupMember, Protocol):
    """The owner of a device. It executes one order at a time."""

    async def end(self) -> int | None:
        """End the worker; return its exit code."""

    async def acquire_engine(self, engine: str, waiting: Sequence[str] = ()) -> dict[str, Any]:
        """Keep an engine awake until it is released. Raises `WorkerDied`."""

    async def release_engine(self, engine: str) -> dict[str, Any]:
        """Release an engine, so that it may sleep. Raises `WorkerDied`."""

    async def check_engine(self, engine: str, *, restarted: bool = False) -> dict[str, Any]:
        """Check the memory state of an engine. Raises `WorkerDied`."""

    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Offer a new or changed service. Raises `WorkerDied`."""

    async def forget(self, name: str) -> dict[str, Any]:
        """Remove a service. Raises `WorkerDied`."""

    async def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Pin or unpin a service. Raises `WorkerDied`."""

    async def restore(self, name: str) -> dict[str, Any]:
        """Load a service onto the device. Raises `WorkerDied`."""

    async def evict(self, name: str) -> dict[str, Any]:
        """Evict a service from the device. Raises `WorkerDied`."""


@dataclass(slots=True, eq=False)
class DeviceSlot:
    """A device and its worker, with their state after the last batch."""

    number: int
    worker: DeviceWorker
    states: Mapping[str, ResidencyState] = field(default_factory=dict)
    used_bytes: int = 0
    fitting: Collection[str] | None = None
    current_service: str | None = None
    """Service of the batch that the device computes now."""
    work_available: asyncio.Event = field(default_factory=asyncio.Event)
    deaths: int = 0
    """Number of deaths of its worker, or of another worker of the group, during batches that this device took."""
    deferred: deque[Batch] = field(default_factory=deque)
    """Batches that wait until an engine in use is released."""
    reassigned: deque[Batch] = field(default_factory=deque)
    """Batches that did not fit on another device."""
    refused_until: dict[str, float] = field(default_factory=dict)
    """Services that do not fit here even after evictions, and the time until which that is assumed."""

    @property
    def occupying_services(self) -> set[str]:
        """Return the services that are on the device or being computed there."""
        return self.device_services if self.current_service is None else self.device_services | {self.current_service}

    @property
    def device_services(self) -> set[str]:
        """Services that are on the device or are being copied to it."""
        return {name for name, state in self.states.items() if state in ON_DEVICE_STATES}

    def record_batch(self, batch: Batch, started_at: float, response: Mapping[str, Any]) -> None:
        """Add the batch to the timeline of each of its actions, as a stage that ends now."""
        ended, restore_s = time.monotonic(), response.get("restore_s")
        about = {
            "service": batch[0].job.service,
            "device": self.number,
            "actions": len(batch),
            "restore_us": int(restore_s * 1e6) if restore_s is not None else None,
            "error": response.get("error"),
        }
        for job, start, stop in batch:
            job.timeline.add("batch", started_at, ended, items=stop - start, **about)

    def services_in(self, state: ResidencyState) -> set[str]:
        """Return the services in this state."""
        return {name for name, each in self.states.items() if each is state}

    def refused_services(self, now: float) -> set[str]:
        """Return the services that do not fit here, as far as is known at `now`."""
        return {service for service, until in self.refused_until.items() if now < until}
