"""Who computes batches: a device's worker, and what is known of both."""

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
    """Whatever owns the device. One order at a time."""

    async def end(self) -> int | None: ...
    async def acquire_engine(self, engine: str, waiting: Sequence[str] = ()) -> dict[str, Any]: ...
    async def release_engine(self, engine: str) -> dict[str, Any]: ...
    async def check_engine(self, engine: str, *, restarted: bool = False) -> dict[str, Any]: ...
    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]: ...
    async def forget(self, name: str) -> dict[str, Any]: ...
    async def pin(self, name: str, *, on: bool) -> dict[str, Any]: ...
    async def restore(self, name: str) -> dict[str, Any]: ...
    async def evict(self, name: str) -> dict[str, Any]: ...


@dataclass(slots=True, eq=False)
class DeviceSlot:
    """A device and its worker, as they were after the last batch."""

    number: int
    worker: DeviceWorker
    states: Mapping[str, ResidencyState] = field(default_factory=dict)
    used_bytes: int = 0
    fitting: Collection[str] | None = None
    current_service: str | None = None
    """The service whose batch it computes."""
    work_available: asyncio.Event = field(default_factory=asyncio.Event)
    deaths: int = 0
    """Of its worker, or of another one that computed with it, each in a batch that it took."""
    deferred: deque[Batch] = field(default_factory=deque)
    """What finds room once an engine that is in use is released."""
    reassigned: deque[Batch] = field(default_factory=deque)
    """What another device has no room for."""
    refused_until: dict[str, float] = field(default_factory=dict)
    """Services for which there was no room here, whoever left; and until when that is believed."""

    @property
    def occupying_services(self) -> set[str]:
        return self.device_services if self.current_service is None else self.device_services | {self.current_service}

    @property
    def device_services(self) -> set[str]:
        """Or on its way."""
        return {name for name, state in self.states.items() if state in ON_DEVICE_STATES}

    def record_batch(self, batch: Batch, started_at: float, response: Mapping[str, Any]) -> None:
        """Until now, with that answer: a stage of each of its actions."""
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
        return {name for name, each in self.states.items() if each is state}

    def refused_services(self, now: float) -> set[str]:
        return {service for service, until in self.refused_until.items() if now < until}
