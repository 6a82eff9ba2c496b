"""Removal of secrets from responses of endpoints, in all forms in which they may appear."""

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterable, Iterator
from html import escape
from urllib.parse import quote_plus

__all__ = ["REDACTED", "SecretRedactor"]

REDACTED = b"[hidden]"
MIN_SECRET_CHARACTERS = 4
"""Minimum length of a hidden word; a shorter word occurs in any text."""


class SecretRedactor:
    """A filter that hides secrets in responses."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Create a redactor of values of headers and parameters, as they are sent."""
        words = {part for secret in secrets for part in _secret_forms(secret) if len(part) >= MIN_SECRET_CHARACTERS}
        longest_first = sorted(words, key=len, reverse=True)
        self._words = [word.encode() for word in longest_first]
        self._pattern = re.compile("|".join(map(_word_pattern, longest_first)).encode()) if words else None

    def redact(self, content: bytes) -> bytes:
        """Return the content with all secrets replaced."""
        return content if self._pattern is None else self._pattern.sub(REDACTED, content)

    def redact_truncated(self, content: bytes) -> bytes:
        """Redact truncated content: its end may be the beginning of a secret."""
        content = self.redact(content)
        longest = max(map(len, self._words), default=0)
        for length in range(min(longest - 1, len(content)), 0, -1):
            if any(word.startswith(content[-length:]) for word in self._words):
                return content[:-length]
        return content


def _secret_forms(secret: str) -> Iterator[str]:
    """Yield a secret such as `Bearer KEY`, its credentials, and the password of `Basic …` (RFC 7617)."""
    scheme, _, credentials = secret.rpartition(" ")
    yield from (secret, credentials)
    if scheme.lower() == "basic":
        try:
            user, _, password = b64decode(credentials).decode().partition(":")
        except (Error, UnicodeDecodeError):
            return
        yield from (f"{user}:{password}", password)


def _word_pattern(word: str) -> str:
    """Return a pattern. Letters and digits are literal; other characters may be escaped as in URLs, JSON and HTML."""
    return "".join(each if each.isalnum() else _character_pattern(each) for each in word)


def _character_pattern(character: str) -> str:
    code = ord(character)
    escaped = (rf"%{code:02x}", rf"\\u{code:04x}", rf"&#0*{code};", rf"&#x0*{code:x};")
    plain = {re.escape(each) for each in (character, f"\\{character}", quote_plus(character), escape(character))}
    return f"(?:{'|'.join(sorted(plain, key=len, reverse=True))}|(?i:{'|'.join(escaped)}))"
