"""Signed URLs of ports: the token in the path names the port, the key that signed it, and the time at which it ends.

The token is in the path and not in the query, so that relative links of a page keep it.
"""

import hmac
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

__all__ = ["SIGNED_PREFIX", "PortGrant", "PortUrlSigner"]

SIGNED_PREFIX = "/v1/ports/"
LABEL = "tangram.port-url.1"
SIGNATURE_CHARACTERS = 40
"""160 bits of the HMAC in hexadecimal digits."""
TOKEN = re.compile(r"([0-9a-f]{32})-(\d{1,5})-(\d{1,10})-(\d{1,12})-([0-9a-f]{40})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortGrant:
    """The content of a token: permission to use one port of one environment until a time."""

    environment: UUID
    port: int
    key_id: int
    expires_at: int
    """Unix time."""


class PortUrlSigner:
    """The signer and verifier of tokens. All gateways of a system have the same secret."""

    def __init__(self, service_token: str, *, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(service_token.encode(), LABEL.encode(), "sha256")
        self._clock = clock

    def now(self) -> int:
        """Return the Unix time."""
        return int(self._clock())

    def sign(self, grant: PortGrant) -> str:
        """Return the token of a grant."""
        text = f"{grant.environment.hex}-{grant.port}-{grant.key_id}-{grant.expires_at}"
        return f"{text}-{self._signature(text)}"

    def verify(self, token: str) -> PortGrant | None:
        """Return the grant of a token, or None if the token is wrong or has expired."""
        found = TOKEN.fullmatch(token)
        if found is None or not hmac.compare_digest(found[5], self._signature(token.rpartition("-")[0])):
            return None
        grant = PortGrant(
            environment=UUID(hex=found[1]), port=int(found[2]), key_id=int(found[3]), expires_at=int(found[4])
        )
        return grant if self._clock() < grant.expires_at else None

    def _signature(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()[:SIGNATURE_CHARACTERS]
