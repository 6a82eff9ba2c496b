"""Single-use tokens with which a machine joins as a node.

A token has a public id and a secret. The installation stores the node's credentials encrypted with a key from the
secret, and a hash of a proof. The node sends only the id and the proof, so a reader of the request or of the database
cannot decrypt the credentials. Encryption is Fernet of the package `cryptography` (AES-128-CBC and HMAC-SHA256).
"""

import hmac
import json
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

from cryptography.fernet import Fernet, InvalidToken

__all__ = ["InvalidJoinToken", "JoinToken"]

_PREFIX = "tj"
_ID_BYTES, _SECRET_BYTES = 6, 32
_ID, _SECRET = re.compile(f"[0-9a-f]{{{2 * _ID_BYTES}}}"), re.compile(f"[0-9A-Za-z_-]{{{_SECRET_BYTES},128}}")
_PROOF_LABEL, _KEY_LABEL = b"tangram.join-proof.1", b"tangram.join-key.1"


class InvalidJoinToken(ValueError):
    """A text that is no join token, or the token of other credentials."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A join token."""

    id: str
    secret: str

    @classmethod
    def generate(cls) -> Self:
        """Return a new token."""
        return cls(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a token. Raises InvalidJoinToken."""
        prefix, _, rest = text.strip().partition("_")
        id, _, secret = rest.partition("_")
        if prefix != _PREFIX or not _ID.fullmatch(id) or not _SECRET.fullmatch(secret):
            raise InvalidJoinToken("this is no join token; create one with `tangram nodes join-token create`")
        return cls(id, secret)

    @property
    def authorization(self) -> str:
        """Return the header with which the node proves that it has the secret, without the secret itself."""
        return f"Bearer {_PREFIX}_{self.id}_{self.proof}"

    def __str__(self) -> str:
        return f"{_PREFIX}_{self.id}_{self.secret}"

    @property
    def proof(self) -> str:
        """Return what the node sends to show that it has the secret."""
        return hmac.digest(self.secret.encode(), _PROOF_LABEL, "sha256").hex()

    @property
    def proof_hash(self) -> bytes:
        """Return what the installation stores to check the proof."""
        return sha256(self.proof.encode()).digest()

    def encrypt(self, credentials: Mapping[str, Any]) -> bytes:
        """Return the credentials as bytes that only this token decrypts."""
        return self._cipher().encrypt(json.dumps(credentials).encode())

    def decrypt(self, content: bytes) -> dict[str, Any]:
        """Return the credentials. Raises InvalidJoinToken if they were encrypted with another token."""
        try:
            return dict(json.loads(self._cipher().decrypt(content)))
        except InvalidToken:
            raise InvalidJoinToken("the answer was not made for this token; is the address right?") from None

    def _cipher(self) -> Fernet:
        return Fernet(urlsafe_b64encode(hmac.digest(self.secret.encode(), _KEY_LABEL, "sha256")))
