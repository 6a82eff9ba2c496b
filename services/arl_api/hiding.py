"""What is secret is taken out of what an endpoint repeats of it, in the forms in which it may stand there."""

import json
from base64 import b64decode
from binascii import Error
from collections.abc import Iterable, Iterator
from html import escape
from urllib.parse import quote, quote_plus

__all__ = ["HIDDEN", "Hiding"]

HIDDEN = b"[hidden]"
SHORTEST = 4
"""Characters of what is hidden: a shorter word stands in any text."""


class Hiding:
    def __init__(self, secrets: Iterable[str]) -> None:
        """Values of headers and parameters, each as it is sent."""
        forms = {form for secret in secrets for part in _parts(secret) for form in _forms(part)}
        self._forms = [form.encode() for form in sorted(forms, key=len, reverse=True)]

    def of(self, content: bytes) -> bytes:
        for form in self._forms:
            content = content.replace(form, HIDDEN)
        return content

    def of_beginning(self, content: bytes) -> bytes:
        """Of what was cut: its end may be the beginning of something secret."""
        content = self.of(content)
        longest = max(map(len, self._forms), default=0)
        for length in range(min(longest - 1, len(content)), 0, -1):
            end = content[-length:]
            if any(form.startswith(end) for form in self._forms):
                return content[:-length]
        return content


def _parts(secret: str) -> Iterator[str]:
    """As `Bearer KEY`, and what is in it; of `Basic …` the password too (RFC 7617)."""
    scheme, _, credentials = secret.rpartition(" ")
    yield from (secret, credentials)
    if scheme.lower() == "basic":
        try:
            user, _, password = b64decode(credentials).decode().partition(":")
        except (Error, UnicodeDecodeError):
            return
        yield from (f"{user}:{password}", password)


def _forms(secret: str) -> Iterator[str]:
    """In text, in addresses, in JSON and in HTML."""
    if len(secret) >= SHORTEST:
        written = json.dumps(secret)[1:-1]
        yield from (secret, quote(secret, safe=""), quote_plus(secret), quote(secret), written)
        yield from (written.replace("/", "\\/"), escape(secret))
