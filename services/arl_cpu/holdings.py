"""What this node holds right now: attempts, the amounts and cores they have, and its persistent environments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from arl_core.fence import Fence
from arl_core.ledger import Ledger, fits
from arl_core.model import Amounts, action_part, environment_part
from arl_cpu.cores import CoreMap

__all__ = ["Attempt", "Change", "Holdings"]

_NODE = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    fence: Fence
    amounts: Amounts
    environment: UUID | None
    """A persistent one; None for an ephemeral one, which the attempt's own amounts include."""
    amounts_seq: int = 0
    """The last resize that was confirmed."""

    @property
    def cpu_milli(self) -> int:
        return self.amounts.get("cpu_milli", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A resize that was begun. What the attempt had and what it shall have are both held until its end is known."""

    before: Attempt
    cores_before: tuple[int, ...]
    cpu_milli: int
    cores: tuple[int, ...]

    @property
    def fence(self) -> Fence:
        return self.before.fence


class Holdings:
    """The manager's last word on capacity. Nothing here waits, so no two takes interleave."""

    def __init__(
        self,
        capacity: Amounts,
        cores: tuple[int, ...],
        nodes: Mapping[int, int] | None = None,
        *,
        shares_cores: bool = False,
    ) -> None:
        """With `shares_cores` any number of attempts is taken as far as cores go, and each gets all of them."""
        self._shares_cores = shares_cores
        self._ledger = Ledger()
        self._ledger.set_capacity(_NODE, capacity)
        self._core_map = CoreMap(cores, nodes, shared=shares_cores)
        self._attempts: dict[Fence, Attempt] = {}
        self._busy: dict[UUID, Fence] = {}
        self._homes: set[UUID] = set()
        self._making: dict[UUID, Fence] = {}
        self._ending: set[UUID] = set()

    @property
    def capacity(self) -> Amounts:
        return self._ledger.capacity(_NODE)

    @property
    def free(self) -> Amounts:
        return self._ledger.free(_NODE)

    @property
    def fences(self) -> frozenset[Fence]:
        return frozenset(self._attempts)

    @property
    def environments(self) -> frozenset[UUID]:
        """Persistent environments that are here."""
        return frozenset(self._homes)

    @property
    def recorded_environments(self) -> frozenset[UUID]:
        """Those whose row is known to be committed."""
        return frozenset(self._homes - self._making.keys())

    def attempt(self, fence: Fence) -> Attempt | None:
        return self._attempts.get(fence)

    def is_busy(self, environment: UUID) -> bool:
        return environment in self._busy

    def take(self, attempt: Attempt) -> bool:
        """Hold what an attempt needs, or say no: full, its environment busy or about to end."""
        environment = attempt.environment
        if environment is not None and (environment in self._busy or environment in self._ending):
            return False
        living = environment is not None and environment in self._homes
        needed = action_part(attempt.amounts) if living else dict(attempt.amounts)
        if self._shares_cores:
            needed.pop("cpu_milli", None)
        if not fits(needed, self._ledger.free(_NODE)):
            return False
        self._hold(attempt)
        return True

    def readopt(self, attempt: Attempt, cores: tuple[int, ...]) -> None:
        """It runs, so it holds, whatever our arithmetic says."""
        self._hold(attempt)
        self._core_map.adopt(attempt.fence, cores, attempt.cpu_milli)

    def assign_cores(self, attempt: Attempt) -> tuple[int, ...]:
        return self._core_map.assign(attempt.fence, attempt.cpu_milli)

    def has_cores(self, fence: Fence) -> bool:
        """Whether it was handed to the executor."""
        return bool(self._core_map.cores_of(fence))

    def begin_resize(self, attempt: Attempt, cpu_milli: int) -> Change | None:
        """Take what it shall have beside what it has; None where that much is not free."""
        growth = cpu_milli - attempt.cpu_milli
        if growth > max(0, self.free.get("cpu_milli", 0)) and not self._shares_cores:
            return None
        before = self._core_map.cores_of(attempt.fence)
        cores = self._core_map.assign(attempt.fence, cpu_milli)
        if cpu_milli > attempt.cpu_milli:
            self._change(attempt, cpu_milli)
        return Change(before=attempt, cores_before=before, cpu_milli=cpu_milli, cores=cores)

    def finish_resize(self, change: Change, *, amounts_seq: int) -> None:
        """It was confirmed: what the attempt no longer has is free. Nothing where it has ended meanwhile."""
        if change.fence in self._attempts:
            self._change(replace(change.before, amounts_seq=amounts_seq), change.cpu_milli)
            self._core_map.keep_only(change.fence, change.cores, change.cpu_milli)

    def undo_resize(self, change: Change) -> None:
        """It did not happen."""
        if change.fence in self._attempts:
            self._change(change.before, change.before.cpu_milli)
            self._core_map.keep_only(change.fence, change.cores_before, change.before.cpu_milli)

    def recorded(self, environment: UUID | None) -> None:
        """The environment's row is committed."""
        if environment is not None:
            self._making.pop(environment, None)

    def give_back(self, fence: Fence) -> None:
        """Only what this very fence holds, and an environment whose row its lost start never made."""
        attempt = self._attempts.pop(fence, None)
        if attempt is None:
            return
        self._ledger.release(fence)
        self._core_map.release(fence)
        environment = attempt.environment
        if environment is None:
            return
        if self._busy.get(environment) == fence:
            del self._busy[environment]
        if self._making.get(environment) == fence:
            self.forget_environment(environment)

    def adopt_environment(self, environment: UUID, amounts: Amounts) -> None:
        self._homes.add(environment)
        self._ledger.take(environment, _NODE, amounts)

    def forget_environment(self, environment: UUID) -> None:
        self._homes.discard(environment)
        self._making.pop(environment, None)
        self._ledger.release(environment)

    def begin_ending(self, environments: frozenset[UUID]) -> None:
        """From now on nothing is taken into these."""
        self._ending |= environments

    def stop_ending(self, environments: frozenset[UUID]) -> None:
        self._ending -= environments

    def _change(self, attempt: Attempt, cpu_milli: int) -> None:
        changed = replace(attempt, amounts={**attempt.amounts, "cpu_milli": cpu_milli})
        self._attempts[attempt.fence] = changed
        own = changed.amounts if changed.environment is None else action_part(changed.amounts)
        self._ledger.take(attempt.fence, _NODE, own)

    def _hold(self, attempt: Attempt) -> None:
        self._attempts[attempt.fence] = attempt
        environment = attempt.environment
        if environment is None:
            self._ledger.take(attempt.fence, _NODE, attempt.amounts)
            return
        self._busy[environment] = attempt.fence
        self._ledger.take(attempt.fence, _NODE, action_part(attempt.amounts))
        if environment not in self._homes:
            self._homes.add(environment)
            self._making[environment] = attempt.fence
            self._ledger.take(environment, _NODE, environment_part(attempt.amounts))
