"""Who is calling: an API key, looked up by its hash and remembered for a few seconds."""

import time
from dataclasses import dataclass
from hashlib import sha256

from arl_gateway import repository
from arl_store.tx import Store
from arl_wire.errors import Forbidden, Unauthenticated

__all__ = ["Caller", "Keys"]

CACHE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    key_id: int
    project_id: int
    scopes: frozenset[str]

    def must(self, scope: str) -> None:
        area = scope.partition(":")[0]
        if scope not in self.scopes and f"{area}:*" not in self.scopes:
            raise Forbidden(f"this API key lacks the scope `{scope}`")


class Keys:
    def __init__(self, store: Store, *, cache_s: float) -> None:
        self._store = store
        self._cache_s = cache_s
        self._known: dict[bytes, tuple[float, Caller | None]] = {}

    async def caller(self, authorization: str | None) -> Caller:
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated("send `Authorization: Bearer tk_…`; `tangram up` writes a key to its state directory")
        caller = await self._lookup(sha256(key.strip().encode()).digest())
        if caller is None:
            raise Unauthenticated("this API key is unknown, expired or revoked")
        return caller

    async def _lookup(self, digest: bytes) -> Caller | None:
        now = time.monotonic()
        known = self._known.get(digest)
        if known is not None and now - known[0] < self._cache_s:
            return known[1]
        async with self._store.read() as tx:
            row = await repository.key_by_hash(tx, digest)
        caller = Caller(row.id, row.project_id, frozenset(row.scopes)) if row is not None else None
        if len(self._known) >= CACHE_MAX:
            self._known.clear()
        self._known[digest] = (now, caller)
        return caller
