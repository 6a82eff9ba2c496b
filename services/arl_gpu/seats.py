"""Who computes batches: a device's worker, and what is known of both."""

import asyncio
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from arl_core.residency import Residence
from arl_gpu.groups import Member
from arl_gpu.turns import Batch

__all__ = ["Scorer", "Seat"]

ON_DEVICE = (Residence.RESTORING, Residence.RESIDENT)


class Scorer(Member, Protocol):
    """Whatever owns the device. One order at a time."""

    async def end(self) -> int | None: ...
    async def hold(self, engine: str, waiting: Sequence[str] = ()) -> dict[str, Any]: ...
    async def release(self, engine: str) -> dict[str, Any]: ...
    async def look_at(self, engine: str, *, restarted: bool = False) -> dict[str, Any]: ...
    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]: ...
    async def forget(self, name: str) -> dict[str, Any]: ...
    async def pin(self, name: str, *, on: bool) -> dict[str, Any]: ...
    async def restore(self, name: str) -> dict[str, Any]: ...
    async def evict(self, name: str) -> dict[str, Any]: ...


@dataclass(slots=True, eq=False)
class Seat:
    """A device and its worker, as they were after the last batch."""

    number: int
    worker: Scorer
    states: Mapping[str, Residence] = field(default_factory=dict)
    used_bytes: int = 0
    fitting: Collection[str] | None = None
    serves: str | None = None
    """The service whose batch it computes."""
    work: asyncio.Event = field(default_factory=asyncio.Event)
    deaths: int = 0
    """Of its worker, or of another one that computed with it, each in a batch that it took."""
    parked: deque[Batch] = field(default_factory=deque)
    """What finds room once an engine that is in use is released."""
    handed: deque[Batch] = field(default_factory=deque)
    """What another device has no room for."""
    refused: dict[str, float] = field(default_factory=dict)
    """Services for which there was no room here, whoever left; and until when that is believed."""

    @property
    def holds(self) -> set[str]:
        return self.there if self.serves is None else self.there | {self.serves}

    @property
    def there(self) -> set[str]:
        """Or on its way."""
        return {name for name, state in self.states.items() if state in ON_DEVICE}

    def computed(self, batch: Batch, begun: float, answer: Mapping[str, Any]) -> None:
        """Until now, with that answer: a stage of each of its actions."""
        ended, restore_s = time.monotonic(), answer.get("restore_s")
        about = {
            "service": batch[0].job.service,
            "device": self.number,
            "actions": len(batch),
            "restore_us": int(restore_s * 1e6) if restore_s is not None else None,
            "error": answer.get("error"),
        }
        for job, start, stop in batch:
            job.timeline.add("batch", begun, ended, items=stop - start, **about)

    def services_in(self, state: Residence) -> set[str]:
        return {name for name, each in self.states.items() if each is state}

    def refusing(self, now: float) -> set[str]:
        return {service for service, until in self.refused.items() if now < until}
