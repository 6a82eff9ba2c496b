"""The cores that attempts share on this node, and the part of their allocations that they do not use."""

import asyncio
from collections.abc import Awaitable, Callable

from arl_cpu.contract.executor import Executor
from arl_cpu.node.allocations import NodeAllocations

__all__ = ["SharedCores"]

NOTIFY_MILLI = 250
"""Growth of the unused milli-cores of which the scheduler is notified. It polls smaller changes."""


class SharedCores:
    """The connection of the allocations with the executor and with the node's row."""

    def __init__(
        self,
        allocations: NodeAllocations,
        executor: Executor,
        *,
        record: Callable[[int], Awaitable[object]],
        notify: Callable[[], None],
    ) -> None:
        """Create it for one connection to the executor.

        `record` writes the unused milli-cores to the database. `notify` notifies the scheduler that they grew.
        """
        self._allocations, self._executor = allocations, executor
        self._record, self._notify = record, notify
        self._sent: tuple[int, ...] | None = None
        self._recorded_milli = self._notified_milli = 0
        self._lock = asyncio.Lock()

    @property
    def is_current(self) -> bool:
        """Return True if the executor knows which cores are shared, or if no attempt shares any."""
        return self._allocations.shared_cores in (None, self._sent)

    async def apply(self) -> None:
        """Send the shared cores to the executor if they changed.

        Call it after cores were assigned and before the executor gets the attempt that has them.
        """
        cores = self._allocations.shared_cores
        if cores is not None and cores != self._sent:
            self._sent = cores
            await self._executor.set_shared_cores(cores)

    async def set_unused(self, cpu_milli: int) -> None:
        """Admit grants up to the capacity and these milli-cores from now on, and record them for the scheduler."""
        self._allocations.unused_milli = cpu_milli
        async with self._lock:
            milli = self._allocations.reclaimable_milli
            if milli == self._recorded_milli:
                return
            await self._record(milli)
            self._recorded_milli = milli
            self._notified_milli = min(self._notified_milli, milli)
            if milli - self._notified_milli >= NOTIFY_MILLI:
                self._notified_milli = milli
                self._notify()
