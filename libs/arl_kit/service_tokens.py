"""Tokens between services: signed, valid for two minutes, and bound to one caller and one audience.

Each caller has a secret. The key for an audience is derived from it, so that a receiver holds only keys for its own
audience. A receiver that is compromised can therefore neither use received tokens elsewhere nor sign tokens for others.
"""

import hmac
import time
from collections.abc import Callable, Mapping

__all__ = [
    "CLOCK_TOLERANCE_S",
    "TOKEN_LIFETIME_S",
    "TokenIssuer",
    "TokenVerifier",
    "joined_caller",
    "joined_service_token",
    "node_audience",
    "pairwise_key",
]

TOKEN_LIFETIME_S = 120
"""Seconds from the signature of a token to its expiry."""
CLOCK_TOLERANCE_S = 60
"""Seconds by which the clocks of two machines may differ."""
_KEY_LABEL, _TOKEN_LABEL = "tangram.service-key.1", "tangram.service-token.1"
_NODE_LABEL = "tangram.node-token.1"

Clock = Callable[[], float]


def node_audience(node_name: str, credential_id: str | None = None) -> str:
    """Return the audience of the manager of a node.

    A node that joined has the id of its credentials in it, so that a later node of its name accepts none of its keys.
    """
    return f"node/{node_name}" if credential_id is None else f"node@{credential_id}/{node_name}"


def joined_caller(kind: str, credential_id: str) -> str:
    """Return the name in the tokens of a node that joined with credentials of its own."""
    return f"{kind}@{credential_id}"


def joined_service_token(node_token_master: str, credential_id: str) -> str:
    """Return the secret of a node that joined. The receivers of its tokens derive it as well."""
    return _signature(node_token_master, f"{_NODE_LABEL}\n{credential_id}")


def pairwise_key(service_token: str, audience: str) -> str:
    """Return the key (hex) of a caller with this secret for one audience."""
    return _signature(service_token, f"{_KEY_LABEL}\n{audience}")


class TokenIssuer:
    """The tokens of one caller. A token is used again until half of its lifetime has passed."""

    def __init__(self, caller: str, service_token: str, *, clock: Clock = time.time) -> None:
        self._caller = caller
        self._service_token = service_token
        self._clock = clock
        self._keys: dict[str, str] = {}
        self._tokens: dict[str, tuple[float, str]] = {}
        """Unix time until which a token is used, and the token, by audience."""

    def token_for(self, audience: str) -> str:
        """Return a token that only this audience accepts."""
        now = self._clock()
        use_until, token = self._tokens.get(audience, (0.0, ""))
        # The second condition replaces a token that was signed before the clock was set back.
        if now < use_until <= now + TOKEN_LIFETIME_S:
            return token
        key = self._keys.setdefault(audience, pairwise_key(self._service_token, audience))
        expires_at = int(now) + TOKEN_LIFETIME_S
        token = f"{self._caller}.{expires_at}.{_signature(key, _signed_text(self._caller, audience, expires_at))}"
        self._tokens[audience] = now + TOKEN_LIFETIME_S / 2, token
        return token


class TokenVerifier:
    """The check of tokens for one audience. It holds the pairwise keys of the permitted callers by name."""

    def __init__(
        self,
        audience: str,
        caller_keys: Mapping[str, str],
        *,
        derive_key: Callable[[str], str | None] | None = None,
        clock: Clock = time.time,
    ) -> None:
        """Create a check. `derive_key` returns the key of a caller that `caller_keys` does not have, or None."""
        self._audience = audience
        self._caller_keys = caller_keys
        self._derive_key = derive_key
        self._clock = clock

    def caller_of(self, token: str) -> str | None:
        """Return the service that signed this token, or None if it is not valid here and now."""
        caller, _, rest = token.partition(".")
        expiry, _, signature = rest.partition(".")
        key = self._caller_keys.get(caller)
        if key is None and self._derive_key is not None:
            key = self._derive_key(caller)
        if key is None or not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 12 and signature.isascii()):
            return None
        expires_at, now = int(expiry), self._clock()
        if not now - CLOCK_TOLERANCE_S < expires_at <= now + TOKEN_LIFETIME_S + CLOCK_TOLERANCE_S:
            return None
        expected = _signature(key, _signed_text(caller, self._audience, expires_at))
        return caller if hmac.compare_digest(signature, expected) else None


def _signed_text(caller: str, audience: str, expires_at: int) -> str:
    return f"{_TOKEN_LABEL}\n{caller}\n{audience}\n{expires_at}"


def _signature(key: str, signed: str) -> str:
    return hmac.digest(key.encode(), signed.encode(), "sha256").hex()
