"""The reward services that there are, for those who ask with every request."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl_gateway.reward_rows import offered_services
from arl_store.tx import Store
from arl_wire.kinds import VERIFIERS

__all__ = ["Offered", "OfferedService"]

KEPT_S = 2.0
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
    """A list that is at most `KEPT_S` old."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Sequence[OfferedService] = ()
        self._looked_at = self._until = 0.0
        self._looking = asyncio.Lock()

    async def services(self, *, with_one: str | None = None) -> Sequence[OfferedService]:
        """In order of their names. Looked for anew where the one that is named is not among those that are known."""
        is_known = with_one is None or any(each.name == with_one for each in self._known)
        if time.monotonic() < self._until and (is_known or time.monotonic() < self._looked_at + MISSED_S):
            return self._known
        looked_at = self._looked_at
        async with self._looking:
            if self._looked_at == looked_at:
                self._known = await self._look()
                self._looked_at = time.monotonic()
                self._until = self._looked_at + KEPT_S
        return self._known

    async def _look(self) -> Sequence[OfferedService]:
        async with self._store.read() as tx:
            services, runs_verifiers = await offered_services(tx)
        found = [OfferedService(**service) for service in services]
        found += [OfferedService(name=name, kind=name, is_anywhere=runs_verifiers) for name in VERIFIERS]
        return sorted(found, key=lambda each: each.name)
