"""The reward services that there are, for those who ask with every request."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl_gateway.reward_rows import offered_services
from arl_store.tx import Store, is_temporary
from arl_wire.kinds import VERIFIERS

__all__ = ["Offered", "OfferedService"]

KEPT_S = 2.0
OLD_S = 30.0
"""So old a list may be where no newer one can be had."""
MISSED_S = 0.1
"""Between looks for names that are not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedService:
    """What a request has to know of a service."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_anywhere: bool
    """Some node says that it has it, whether that lives or not; of a verifier, a CPU node takes actions."""
    is_registered: bool = False
    """By an operator; others come along."""


class Offered:
    """A list that is at most `KEPT_S` old, or `OLD_S` while Postgres is away."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._known: Sequence[OfferedService] = ()
        self._looked_at = self._until = -math.inf
        self._looking: asyncio.Task[None] | None = None

    async def services(self, *, with_one: str | None = None) -> Sequence[OfferedService]:
        """In order of their names. Looked for anew where the one that is named is not among those that are known.

        One look serves all who wait. What it raises they all get, unless Postgres is away and what is known will do: it
        is not too old and has the one that is named.
        """
        now = self._clock()
        if now < self._until and (self._knows(with_one) or now < self._looked_at + MISSED_S):
            return self._known
        if self._looking is None:
            self._looking = asyncio.create_task(self._renew())
        try:
            await asyncio.shield(self._looking)
        except Exception as error:
            will_do = self._knows(with_one) and self._clock() <= self._looked_at + OLD_S
            if not (will_do and is_temporary(error)):
                raise
        return self._known

    def _knows(self, name: str | None) -> bool:
        return name is None or any(each.name == name for each in self._known)

    async def _renew(self) -> None:
        """Where Postgres is away, nobody waits for that again before `KEPT_S` are over."""
        try:
            self._known = await self._look()
            self._looked_at = self._clock()
            self._until = self._looked_at + KEPT_S
        except Exception as error:
            if is_temporary(error):
                self._until = min(self._clock() + KEPT_S, self._looked_at + OLD_S)
            raise
        finally:
            self._looking = None

    async def _look(self) -> Sequence[OfferedService]:
        async with self._store.read() as tx:
            services, runs_verifiers = await offered_services(tx)
        found = [OfferedService(**service) for service in services]
        found += [OfferedService(name=name, kind=name, is_anywhere=runs_verifiers) for name in VERIFIERS]
        return sorted(found, key=lambda each: each.name)
