"""What this node holds right now: attempts, the amounts and cores they have, and its persistent environments."""

from dataclasses import dataclass
from uuid import UUID

from arl_core.fence import Fence
from arl_core.ledger import Ledger, fits
from arl_core.model import Amounts, action_part, environment_part
from arl_cpu.cores import CoreMap

__all__ = ["Attempt", "Holdings"]

_NODE = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    fence: Fence
    amounts: Amounts
    environment: UUID | None
    """A persistent one; None for an ephemeral one, which the attempt's own amounts include."""


class Holdings:
    """The manager's last word on capacity. Nothing here waits, so no two takes interleave."""

    def __init__(self, capacity: Amounts, cores: tuple[int, ...]) -> None:
        self._ledger = Ledger()
        self._ledger.set_capacity(_NODE, capacity)
        self._core_map = CoreMap(cores)
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
        if not fits(action_part(attempt.amounts) if living else attempt.amounts, self._ledger.free(_NODE)):
            return False
        self._hold(attempt)
        return True

    def readopt(self, attempt: Attempt, cores: tuple[int, ...]) -> None:
        """It runs, so it holds, whatever our arithmetic says."""
        self._hold(attempt)
        self._core_map.adopt(attempt.fence, cores, attempt.amounts.get("cpu_milli", 0))

    def assign_cores(self, attempt: Attempt) -> tuple[int, ...]:
        return self._core_map.assign(attempt.fence, attempt.amounts.get("cpu_milli", 0))

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
