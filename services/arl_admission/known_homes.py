"""Living environments as they were read a moment ago, so that most actions in one ask for no row of it."""

import time
from collections.abc import Callable, Sequence

from arl_admission import repository
from arl_admission.homes import Home, unlike
from arl_store.tx import WriteTx
from arl_wire.actions import SubmitAction
from arl_wire.internal import AdmitItem

__all__ = ["KnownHomes"]

REFRESH_S = 5.0
REMEMBERED = 10_000
NEED_NO_ROOM = ("environment.files", "environment.transfer")
"""Kinds of actions that take an environment as it is."""

Name = tuple[int, str]
"""Queue and trajectory."""


class KnownHomes:
    def __init__(self) -> None:
        self._seen: dict[Name, tuple[float, Home]] = {}
        """When it was read, and what it was."""

    async def refusals(
        self, tx: WriteTx, items: Sequence[AdmitItem], queue_of: Callable[[AdmitItem], int]
    ) -> dict[int, Exception]:
        """An environment keeps the size and template of its first use; who asks for another learns that now."""
        names = {
            at: (queue_of(item), item.action.trajectory)
            for at, item in enumerate(items)
            if item.action.environment.scope == "trajectory"
            and item.action.trajectory is not None
            and item.action.kind not in NEED_NO_ROOM
        }
        now = time.monotonic()
        unsure = {name for at, name in names.items() if not self._fits_as_seen(items[at].action, name, now)}
        if not unsure:
            return {}
        homes = await repository.environments_named(tx, sorted(unsure))
        if len(self._seen) > REMEMBERED:
            self._seen.clear()
        self._seen |= {name: (now, home) for name, home in homes.items()}
        refusals = {at: unlike(items[at].action, homes.get(name)) for at, name in names.items()}
        return {at: error for at, error in refusals.items() if error is not None}

    def _fits_as_seen(self, action: SubmitAction, name: Name, now: float) -> bool:
        """Nothing is refused by memory: an environment of that name may be another by now."""
        seen_at, home = self._seen.get(name, (float("-inf"), None))
        return now - seen_at < REFRESH_S and home is not None and unlike(action, home) is None
