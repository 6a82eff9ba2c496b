"""Allocations of this node: attempts with their resources and cores, and persistent environments."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from arl_core.capacity.ledger import ResourceLedger, fits
from arl_core.domain.model import CpuSharing, Fence, Resources, action_resources, environment_resources
from arl_cpu.contract.executor import ExecSpec
from arl_cpu.node.core_map import CoreMap

__all__ = ["AttemptAllocation", "CoreTimeMeter", "NodeAllocations", "PendingResize"]

_NODE = 0


@dataclass(frozen=True, slots=True)
class AttemptAllocation:
    """The allocation of one attempt."""

    fence: Fence
    resources: Resources
    environment: UUID | None
    """Persistent environment of the attempt. None for an ephemeral one, which the attempt's own resources include."""
    resize_seq: int = 0
    """Sequence number of the last confirmed resize."""
    expected_cpu_s: float = 1.0
    """CPU-seconds that its class uses on average, if the grant's notification said so."""
    is_critical: bool = False
    """True if its trajectory is expected to end its step last."""

    @property
    def cpu_milli(self) -> int:
        """Return the milli-cores of the attempt."""
        return self.resources.get("cpu_milli", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingResize:
    """A resize that has begun. Both the former and the new cores stay allocated until the outcome is known."""

    previous: AttemptAllocation
    previous_cores: tuple[int, ...]
    cpu_milli: int
    cores: tuple[int, ...]

    @property
    def fence(self) -> Fence:
        """Return the fence of the attempt."""
        return self.previous.fence


class NodeAllocations:
    """The authoritative record of this node's resources.

    All methods are synchronous, so allocations never interleave.
    """

    def __init__(
        self,
        capacity: Resources,
        cores: tuple[int, ...],
        numa_nodes: Mapping[int, int] | None = None,
        *,
        shares_cores: bool = False,
        core_time: "CoreTimeMeter | None" = None,
    ) -> None:
        """Create the record.

        With `shares_cores`, cores do not limit the number of attempts and each attempt gets all of them.
        """
        self._shares_cores = shares_cores
        self._core_time = core_time or CoreTimeMeter()
        self._ledger = ResourceLedger()
        self._ledger.set_capacity(_NODE, capacity)
        self._core_map = CoreMap(cores, numa_nodes, shared=shares_cores)
        self._attempts: dict[Fence, AttemptAllocation] = {}
        self._busy: dict[UUID, Fence] = {}
        self._environments: set[UUID] = set()
        self._creating: dict[UUID, Fence] = {}
        self._ending: set[UUID] = set()
        self._sharing: dict[Fence, CpuSharing] = {}
        self.unused_milli = 0
        """Milli-cores that attempts with shared cores do not use, as the executor reported last."""

    @property
    def capacity(self) -> Resources:
        """Return the total resources of the node."""
        return self._ledger.capacity(_NODE)

    @property
    def available(self) -> Resources:
        """Return the free resources of the node."""
        return self._ledger.available(_NODE)

    @property
    def reclaimable_milli(self) -> int:
        """Return the milli-cores that grants may have beyond the capacity.

        Each attempt keeps its declared guarantee, so exclusive cores and these guarantees never exceed the capacity.
        """
        if not self._sharing:
            return 0
        most = sum(
            max(0, self._attempts[fence].cpu_milli - sharing.guarantee_milli)
            for fence, sharing in self._sharing.items()
            if not sharing.is_declared
        )
        return min(self.unused_milli, most)

    @property
    def shared_cores(self) -> tuple[int, ...] | None:
        """Return the cores that attempts share; None if no attempt does."""
        return self._core_map.shared_cores if self._core_map.has_sharers else None

    @property
    def fences(self) -> frozenset[Fence]:
        """Return the attempts with an allocation."""
        return frozenset(self._attempts)

    @property
    def environments(self) -> frozenset[UUID]:
        """Persistent environments on this node."""
        return frozenset(self._environments)

    @property
    def recorded_environments(self) -> frozenset[UUID]:
        """Environments whose row is known to be committed."""
        return frozenset(self._environments - self._creating.keys())

    def get(self, fence: Fence) -> AttemptAllocation | None:
        """Return the allocation of an attempt, or None."""
        return self._attempts.get(fence)

    def core_seconds(self, fence: Fence) -> float:
        """Return the core-seconds that an attempt has allocated so far."""
        return self._core_time.core_seconds(fence)

    def is_busy(self, environment: UUID) -> bool:
        """Return True if an attempt is allocated in the environment."""
        return environment in self._busy

    def allocate(self, attempt: AttemptAllocation) -> bool:
        """Allocate resources for an attempt. Return False if they do not fit or its environment is busy or ending."""
        environment = attempt.environment
        if environment is not None and (environment in self._busy or environment in self._ending):
            return False
        living = environment is not None and environment in self._environments
        needed = action_resources(attempt.resources) if living else dict(attempt.resources)
        if self._shares_cores:
            needed.pop("cpu_milli", None)
        available = self._ledger.available(_NODE)
        if self._sharing:
            available["cpu_milli"] = available.get("cpu_milli", 0) + self.reclaimable_milli
        if not fits(needed, available):
            return False
        self._record(attempt)
        return True

    def readopt(
        self,
        attempt: AttemptAllocation,
        cores: tuple[int, ...],
        *,
        granted_ago_s: float = 0.0,
        sharing: CpuSharing | None = None,
    ) -> None:
        """Allocate the resources of an attempt that already runs, even if they exceed the capacity."""
        self._record(attempt, held_s=granted_ago_s)
        if sharing is not None:
            self.assign_cores(attempt, sharing)
        else:
            self._core_map.adopt(attempt.fence, cores, attempt.cpu_milli)

    def assign_cores(self, attempt: AttemptAllocation, sharing: CpuSharing | None = None) -> tuple[int, ...]:
        """Assign cores to an allocated attempt and return them. With `sharing`, they follow the exclusive ones."""
        if sharing is not None and attempt.fence in self._attempts:
            self._sharing[attempt.fence] = sharing
            return self._core_map.share(attempt.fence)
        return self._core_map.assign(attempt.fence, attempt.cpu_milli)

    def has_cores(self, fence: Fence) -> bool:
        """Return True if the attempt was passed to the executor."""
        return bool(self._core_map.cores_of(fence))

    def begin_resize(self, attempt: AttemptAllocation, cpu_milli: int) -> PendingResize | None:
        """Allocate the new amount in addition to the former one. Return None if the growth does not fit."""
        growth = cpu_milli - attempt.cpu_milli
        if growth > max(0, self.available.get("cpu_milli", 0) + self.reclaimable_milli) and not self._shares_cores:
            return None
        before = self._core_map.cores_of(attempt.fence)
        cores = self._core_map.assign(attempt.fence, cpu_milli)
        if cpu_milli > attempt.cpu_milli:
            self._set_cpu(attempt, cpu_milli)
        return PendingResize(previous=attempt, previous_cores=before, cpu_milli=cpu_milli, cores=cores)

    def finish_resize(self, pending: PendingResize, *, resize_seq: int) -> None:
        """Apply a confirmed resize and free the former cores. Do nothing if the attempt has ended."""
        if pending.fence in self._attempts:
            self._set_cpu(replace(pending.previous, resize_seq=resize_seq), pending.cpu_milli)
            self._core_map.replace(pending.fence, pending.cores, pending.cpu_milli)

    def undo_resize(self, pending: PendingResize) -> None:
        """Restore the former allocation after a failed resize."""
        if pending.fence in self._attempts:
            self._set_cpu(pending.previous, pending.previous.cpu_milli)
            self._core_map.replace(pending.fence, pending.previous_cores, pending.previous.cpu_milli)

    def mark_recorded(self, environment: UUID | None) -> None:
        """Record that the environment's row is committed."""
        if environment is not None:
            self._creating.pop(environment, None)

    def release(self, fence: Fence) -> None:
        """Free the allocation of this fence, and its environment if the start that would create its row was lost."""
        attempt = self._attempts.pop(fence, None)
        if attempt is None:
            return
        self._ledger.release(fence)
        self._core_map.release(fence)
        self._sharing.pop(fence, None)
        self._core_time.remove(fence)
        environment = attempt.environment
        if environment is None:
            return
        if self._busy.get(environment) == fence:
            del self._busy[environment]
        if self._creating.get(environment) == fence:
            self.release_environment(environment)

    def adopt_environment(self, environment: UUID, resources: Resources) -> None:
        """Allocate the resources of an environment that exists already."""
        self._environments.add(environment)
        self._ledger.allocate(environment, _NODE, resources)

    def release_environment(self, environment: UUID) -> None:
        """Release the resources of an environment that has ended."""
        self._environments.discard(environment)
        self._creating.pop(environment, None)
        self._ledger.release(environment)

    def set_critical(self, changes: Mapping[Fence, bool]) -> dict[Fence, bool]:
        """Set whether attempts belong to critical trajectories. Return the changes of known attempts."""
        known = {fence: changes[fence] for fence in changes.keys() & self._attempts.keys()}
        for fence, is_critical in known.items():
            self._attempts[fence] = replace(self._attempts[fence], is_critical=is_critical)
        return known

    def with_critical(self, spec: ExecSpec) -> ExecSpec:
        """Return the specification with the latest change of its trajectory, which may have come since it was made."""
        attempt = self._attempts.get(spec.fence)
        if attempt is None or attempt.is_critical == spec.is_critical:
            return spec
        return replace(spec, is_critical=attempt.is_critical)

    def begin_termination(self, environments: frozenset[UUID]) -> None:
        """Refuse new attempts in these environments from now on."""
        self._ending |= environments

    def end_termination(self, environments: frozenset[UUID]) -> None:
        """Accept attempts in these names again; their environments have ended."""
        self._ending -= environments

    def _set_cpu(self, attempt: AttemptAllocation, cpu_milli: int) -> None:
        changed = replace(attempt, resources={**attempt.resources, "cpu_milli": cpu_milli})
        self._attempts[attempt.fence] = changed
        self._core_time.set_cores(attempt.fence, cpu_milli)
        own = changed.resources if changed.environment is None else action_resources(changed.resources)
        self._ledger.allocate(attempt.fence, _NODE, own)

    def _record(self, attempt: AttemptAllocation, *, held_s: float = 0.0) -> None:
        self._attempts[attempt.fence] = attempt
        self._core_time.set_cores(attempt.fence, attempt.cpu_milli, held_s=held_s)
        environment = attempt.environment
        if environment is None:
            self._ledger.allocate(attempt.fence, _NODE, attempt.resources)
            return
        self._busy[environment] = attempt.fence
        self._ledger.allocate(attempt.fence, _NODE, action_resources(attempt.resources))
        if environment not in self._environments:
            self._environments.add(environment)
            self._creating[environment] = attempt.fence
            self._ledger.allocate(environment, _NODE, environment_resources(attempt.resources))


class CoreTimeMeter:
    """The core-seconds of allocated attempts so far.

    They are read before the allocation is released. An attempt that an earlier process of the manager started begins
    with the time since its grant.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meters: dict[Fence, tuple[int, float, float]] = {}
        """Milli-cores, the time since when, and the core-seconds before that time."""

    def set_cores(self, fence: Fence, cpu_milli: int, *, held_s: float = 0.0) -> None:
        """Count these cores from now on.

        Args:
            fence: The attempt; one that is unknown begins.
            cpu_milli: Milli-cores that it has allocated from now on.
            held_s: Seconds for which it has had them already, if an earlier process of the manager began to count.
        """
        before_s = self.core_seconds(fence) + cpu_milli * held_s / 1000
        self._meters[fence] = (cpu_milli, self._clock(), before_s)

    def core_seconds(self, fence: Fence) -> float:
        """Return the core-seconds of an attempt until now, or 0 if it is not allocated."""
        cpu_milli, since, before_s = self._meters.get(fence, (0, 0.0, 0.0))
        return before_s + (cpu_milli * (self._clock() - since) / 1000 if cpu_milli else 0.0)

    def remove(self, fence: Fence) -> None:
        """Stop counting an attempt."""
        self._meters.pop(fence, None)
