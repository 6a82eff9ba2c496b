"""A cached directory of reward services, read on every request."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl_gateway.reward_services.queries import directory_entries
from arl_store.tx import PostgresStore, is_temporary
from arl_wire.reward_services.kinds import VERIFIERS

__all__ = ["ServiceDirectory", "ServiceEntry"]

CACHE_S = 2.0
MAX_STALE_S = 30.0
"""Maximum age of the directory in seconds while it cannot be refreshed."""
MISS_RETRY_S = 0.1
"""Seconds between refreshes caused by unknown names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEntry:
    """The properties of a service that requests need."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_anywhere: bool
    """True if a node reports the service, even a dead node. For a verifier: a CPU node takes actions."""
    is_registered: bool = False
    """True if an operator registered it; otherwise it is built-in."""


class ServiceDirectory:
    """A directory that is at most `CACHE_S` old, or `MAX_STALE_S` while Postgres is unavailable."""

    def __init__(self, store: PostgresStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._entries: Sequence[ServiceEntry] = ()
        self._refreshed_at = self._fresh_until = -math.inf
        self._refreshing: asyncio.Task[None] | None = None

    async def list_services(self, *, required: str | None = None) -> Sequence[ServiceEntry]:
        """Return services by name. Refresh the directory if it is too old or lacks `required`.

        Concurrent callers share one refresh and its error. If Postgres is unavailable, return the previous directory
        unless it is older than `MAX_STALE_S` or lacks `required`.
        """
        now = self._clock()
        if now < self._fresh_until and (self._has_entry(required) or now < self._refreshed_at + MISS_RETRY_S):
            return self._entries
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh_entries())
        try:
            await asyncio.shield(self._refreshing)
        except Exception as error:
            will_do = self._has_entry(required) and self._clock() <= self._refreshed_at + MAX_STALE_S
            if not (will_do and is_temporary(error)):
                raise
        return self._entries

    def _has_entry(self, name: str | None) -> bool:
        return name is None or any(each.name == name for each in self._entries)

    async def _refresh_entries(self) -> None:
        """Read the directory. If Postgres is unavailable, no call tries again within `CACHE_S`."""
        try:
            self._entries = await self._fetch_entries()
            self._refreshed_at = self._clock()
            self._fresh_until = self._refreshed_at + CACHE_S
        except Exception as error:
            if is_temporary(error):
                self._fresh_until = min(self._clock() + CACHE_S, self._refreshed_at + MAX_STALE_S)
            raise
        finally:
            self._refreshing = None

    async def _fetch_entries(self) -> Sequence[ServiceEntry]:
        async with self._store.read() as tx:
            services, runs_verifiers = await directory_entries(tx)
        found = [ServiceEntry(**service) for service in services]
        found += [ServiceEntry(name=name, kind=name, is_anywhere=runs_verifiers) for name in VERIFIERS]
        return sorted(found, key=lambda each: each.name)
