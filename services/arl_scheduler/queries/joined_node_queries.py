"""The joined nodes as callers: the keys of their tokens, and whether their credentials still exist."""

import re
import time
from collections.abc import Callable

from pydantic import SecretStr
from sqlalchemy import text

from arl_kit.service_tokens import joined_service_token, pairwise_key
from arl_store.tx import PostgresStore

__all__ = ["JoinedNodes"]

SELECT_CREDENTIAL = text("select 1 as found from node_roles where credential_id = :id and kind = :kind")
MAX_AGE_S = 5.0
"""Seconds for which an answer of Postgres is used again. A removed node is refused after this time at the latest."""
MAX_CACHED = 10_000
KINDS = frozenset({"cpu", "gpu", "api"})
CREDENTIAL_ID = re.compile("[0-9a-z]{1,64}")


class JoinedNodes:
    """The check of nodes that joined. Their keys are derived, so that the scheduler needs no restart for a new node."""

    def __init__(self, store: PostgresStore, master: SecretStr, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._master = master.get_secret_value()
        self._clock = clock
        self._keys: dict[str, str] = {}
        self._known: dict[str, tuple[float, bool]] = {}
        """Time until which an answer is used, and whether the credentials exist, by caller."""

    def key_of(self, caller: str) -> str | None:
        """Return the key of a node's tokens for the scheduler, or None if the name is not that of a joined node."""
        kind, _, credential_id = caller.partition("@")
        if kind not in KINDS or not CREDENTIAL_ID.fullmatch(credential_id):
            return None
        if len(self._keys) >= MAX_CACHED:
            self._keys.clear()
        if credential_id not in self._keys:
            self._keys[credential_id] = pairwise_key(joined_service_token(self._master, credential_id), "scheduler")
        return self._keys[credential_id]

    async def is_active(self, caller: str) -> bool:
        """Return True if Postgres has the credentials of this caller, whose token was already checked."""
        until, is_active = self._known.get(caller, (float("-inf"), False))
        if self._clock() < until:
            return is_active
        kind, _, credential_id = caller.partition("@")
        async with self._store.read() as tx:
            row = await tx.first(SELECT_CREDENTIAL, {"id": credential_id, "kind": kind})
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        self._known[caller] = self._clock() + MAX_AGE_S, row is not None
        return row is not None
