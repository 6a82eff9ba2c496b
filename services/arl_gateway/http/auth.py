"""Authentication by API key. Keys are looked up by their hash and cached for a few seconds."""

import asyncio
import time
from base64 import b64decode
from dataclasses import dataclass
from hashlib import sha256

from arl_gateway.admin import key_queries
from arl_store.tx import PostgresStore
from arl_wire.errors import Forbidden, Unauthenticated

__all__ = ["ROOT_PROJECT", "Caller", "KeyAuthenticator", "contains_api_key"]

ROOT_PROJECT = "default"
"""Project whose keys may administer the whole installation."""

MAX_CACHED_KEYS = 10_000
KEY_PREFIXES = ("tk_", "e2b_")
"""Beginnings of API keys. Old clients of E2B demand the second one."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The key of an authenticated request, with its project and scopes."""

    key_id: int
    project_id: int
    project: str
    scopes: frozenset[str]

    @property
    def is_root(self) -> bool:
        """Return True if the key belongs to the project that administers the installation."""
        return self.project == ROOT_PROJECT

    def has_scope(self, scope: str) -> bool:
        """Return True if the key has the scope. `write` includes `read` of its area; `*` includes all of its area."""
        area, _, verb = scope.partition(":")
        enough = {scope, f"{area}:*"} | ({f"{area}:write"} if verb == "read" else set())
        return not enough.isdisjoint(self.scopes)

    def require_scope(self, scope: str) -> None:
        """Raise `Forbidden` unless the key has the scope."""
        if not self.has_scope(scope):
            raise Forbidden(f"this API key lacks the scope `{scope}`")


class KeyAuthenticator:
    """Authenticator of API keys. A key revoked here is refused at once; elsewhere after at most `cache_s`."""

    def __init__(self, store: PostgresStore, *, cache_s: float) -> None:
        self._store = store
        self._cache_s = cache_s
        self._cache: dict[bytes, tuple[float, Caller | None]] = {}
        """Expiry time and caller, by the hash of the key."""
        self._revocations = 0
        self._lookups: dict[tuple[bytes, int], asyncio.Task[Caller | None]] = {}
        """Lookups in progress, by hash and revocation count. A lookup that started before a revocation is not reused
        after it.
        """

    async def authenticate(self, authorization: str | None) -> Caller:
        """Return the caller of an `Authorization` header. Raises `Unauthenticated`."""
        key = _parse_key(authorization or "")
        if not key:
            raise Unauthenticated(
                "the request has no API key: send `Authorization: Bearer tk_…`. `tangram up` writes a key to its state"
                " directory"
            )
        caller = await self._lookup(sha256(key.encode()).digest())
        if caller is None:
            raise Unauthenticated("this API key is unknown, expired or revoked")
        return caller

    def invalidate(self, key_id: int) -> None:
        """Forget a revoked key. A lookup in progress may have read it earlier, so its result is not cached."""
        self._revocations += 1
        for digest in [digest for digest, (_, caller) in self._cache.items() if caller and caller.key_id == key_id]:
            del self._cache[digest]

    async def _lookup(self, digest: bytes) -> Caller | None:
        known = self._cache.get(digest)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        asked = digest, self._revocations
        if (looking := self._lookups.get(asked)) is None:
            # Concurrent requests share one lookup: clients send many calls at the same time.
            looking = self._lookups[asked] = asyncio.create_task(self._fetch_caller(digest))
            looking.add_done_callback(lambda done: self._lookup_done(asked, done))
        return await asyncio.shield(looking)

    def _lookup_done(self, lookup_key: tuple[bytes, int], done: "asyncio.Task[Caller | None]") -> None:
        self._lookups.pop(lookup_key, None)
        if not done.cancelled():
            done.exception()  # retrieve it; waiting requests get the same error

    async def _fetch_caller(self, digest: bytes) -> Caller | None:
        now, revocations = time.monotonic(), self._revocations
        async with self._store.read() as tx:
            row = await key_queries.key_by_hash(tx, digest)
        caller, until = None, now + self._cache_s
        if row is not None:
            caller = Caller(row.id, row.project_id, row.project, frozenset(row.scopes))
            until = min(until, now + row.expires_in_s) if row.expires_in_s is not None else until
        if len(self._cache) >= MAX_CACHED_KEYS:
            self._cache.clear()
        if revocations == self._revocations:
            self._cache[digest] = (until, caller)
        return caller


def contains_api_key(credential: str) -> bool:
    """Return True if the value of `Authorization` or `X-API-Key` has the form of an API key, valid or not."""
    return credential.startswith(KEY_PREFIXES) or _parse_key(credential).startswith(KEY_PREFIXES)


def _parse_key(authorization: str) -> str:
    """Return the key of a bearer token, or of `Basic` (RFC 7617): the password, or else the user.

    Clients that accept only a URL send `Basic`.
    """
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        user, _, password = b64decode(given.strip(), validate=True).decode().partition(":")
    except ValueError:
        return ""
    return password or user
