"""Who is calling: an API key, looked up by its hash and remembered for a few seconds."""

import asyncio
import time
from base64 import b64decode
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
    project: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """`write` includes `read` of its area, `*` is all of its area."""
        area, _, verb = scope.partition(":")
        enough = {scope, f"{area}:*"} | ({f"{area}:write"} if verb == "read" else set())
        return not enough.isdisjoint(self.scopes)

    def must(self, scope: str) -> None:
        if not self.may(scope):
            raise Forbidden(f"this API key lacks the scope `{scope}`")


class Keys:
    """A key revoked here is refused at once; one revoked at another gateway after at most `cache_s`."""

    def __init__(self, store: Store, *, cache_s: float) -> None:
        self._store = store
        self._cache_s = cache_s
        self._known: dict[bytes, tuple[float, Caller | None]] = {}
        """Until when, by the hash of the key."""
        self._revocations = 0
        self._looking: dict[tuple[bytes, int], asyncio.Task[Caller | None]] = {}
        """By the hash of the key and the revocations before: whoever comes after one does not ask with those before."""

    async def caller(self, authorization: str | None) -> Caller:
        key = _key_of(authorization or "")
        if not key:
            raise Unauthenticated("send `Authorization: Bearer tk_…`; `tangram up` writes a key to its state directory")
        caller = await self._lookup(sha256(key.encode()).digest())
        if caller is None:
            raise Unauthenticated("this API key is unknown, expired or revoked")
        return caller

    def forget(self, key_id: int) -> None:
        """The key was revoked. A look-up under way may have read it before, so none of these is remembered."""
        self._revocations += 1
        for digest in [digest for digest, (_, caller) in self._known.items() if caller and caller.key_id == key_id]:
            del self._known[digest]

    async def _lookup(self, digest: bytes) -> Caller | None:
        known = self._known.get(digest)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        asked = digest, self._revocations
        if (looking := self._looking.get(asked)) is None:
            # One look for all who come meanwhile: an answer to many calls is followed by as many calls at once.
            looking = self._looking[asked] = asyncio.create_task(self._look(digest))
            looking.add_done_callback(lambda done: self._looked(asked, done))
        return await asyncio.shield(looking)

    def _looked(self, asked: tuple[bytes, int], done: "asyncio.Task[Caller | None]") -> None:
        self._looking.pop(asked, None)
        if not done.cancelled():
            done.exception()  # is for those who wait, if any still do

    async def _look(self, digest: bytes) -> Caller | None:
        now, revocations = time.monotonic(), self._revocations
        async with self._store.read() as tx:
            row = await repository.key_by_hash(tx, digest)
        caller, until = None, now + self._cache_s
        if row is not None:
            caller = Caller(row.id, row.project_id, row.project, frozenset(row.scopes))
            until = min(until, now + row.expires_in_s) if row.expires_in_s is not None else until
        if len(self._known) >= CACHE_MAX:
            self._known.clear()
        if revocations == self._revocations:
            self._known[digest] = (until, caller)
        return caller


def _key_of(authorization: str) -> str:
    """A bearer's, or of `Basic` (RFC 7617) the password, else the user: clients that only take a URL send that."""
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
