"""A cache of living environments, so that most actions in an environment need no query."""

import time
from collections.abc import Callable, Sequence

from arl_admission import queries
from arl_admission.checks.environment_checks import ExistingEnvironment, check_compatible
from arl_store.tx import WriteTx
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.internal.admission import AdmitItem

__all__ = ["EnvironmentCache"]

REFRESH_S = 5.0
MAX_CACHED = 10_000
KINDS_WITHOUT_DEMAND = ("environment.files", "environment.transfer")
"""Kinds of actions that accept an environment of any size."""

EnvironmentName = tuple[int, str]
"""Queue id and trajectory."""


class EnvironmentCache:
    """The live environments that were read lately, by queue and trajectory."""

    def __init__(self) -> None:
        self._cached: dict[EnvironmentName, tuple[float, ExistingEnvironment]] = {}
        """Time of the last read, and the environment."""

    async def refusals(
        self, tx: WriteTx, items: Sequence[AdmitItem], queue_of: Callable[[AdmitItem], int]
    ) -> dict[int, Exception]:
        """Return errors of actions that do not fit the size and template that their environment's first use set."""
        names = {
            at: (queue_of(item), item.action.trajectory)
            for at, item in enumerate(items)
            if item.action.environment.scope == "trajectory"
            and item.action.trajectory is not None
            and item.action.kind not in KINDS_WITHOUT_DEMAND
        }
        now = time.monotonic()
        unsure = {
            name for at, name in names.items() if not self._is_compatible_with_cached(items[at].action, name, now)
        }
        if not unsure:
            return {}
        homes = await queries.environments_by_name(tx, sorted(unsure))
        if len(self._cached) > MAX_CACHED:
            self._cached.clear()
        self._cached |= {name: (now, home) for name, home in homes.items()}
        refusals = {at: check_compatible(items[at].action, homes.get(name)) for at, name in names.items()}
        return {at: error for at, error in refusals.items() if error is not None}

    def _is_compatible_with_cached(self, action: SubmitActionRequest, name: EnvironmentName, now: float) -> bool:
        """Return True if the cached environment fits.

        A refusal needs a fresh read, as the name may have a new environment.
        """
        seen_at, home = self._cached.get(name, (float("-inf"), None))
        return now - seen_at < REFRESH_S and home is not None and check_compatible(action, home) is None
