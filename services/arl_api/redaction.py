"""Removal of secrets from responses of endpoints, in the encodings in which an API may echo them.

Covered: the text itself in any case; URL, JSON and HTML escapes of any of its characters; hexadecimal digits, also with
separators; base64 in both alphabets at any position. Not covered: compression, encryption, other encodings, and a
secret that is split or reversed.
"""

import asyncio
import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterable, Iterator
from html import escape
from urllib.parse import quote_plus

__all__ = ["REDACTED", "SecretRedactor"]

REDACTED = b"[hidden]"
MIN_SECRET_CHARACTERS = 4
"""Minimum length of a hidden word; a shorter word occurs in any text."""
MIN_ENCODED_CHARACTERS = 8
"""Minimum length of a word that is also hidden in hexadecimal and base64."""
MAX_BYTES_PER_CHARACTER = 24
"""Maximum bytes of an encoded character, such as `%252541` and `&#00000065;`."""
WINDOW_BYTES = 256 << 10
_PARTIAL_ESCAPE = r"(?:[%\\&][#xu]?[0-9a-f]{0,6})?"
"""A part of an escape at the end of truncated content."""


class SecretRedactor:
    """A filter that hides secrets in responses."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Create a redactor of values of headers and parameters, as they are sent."""
        words = {part for secret in secrets for part in _secret_forms(secret) if len(part) >= MIN_SECRET_CHARACTERS}
        longest_first = sorted(words, key=len, reverse=True)
        units = [unit for word in longest_first for unit in _encodings(word)]
        self._longest = MAX_BYTES_PER_CHARACTER * max(map(len, units), default=0)
        self._pattern = _compile("|".join("".join(unit) for unit in units)) if units else None
        self._at_end = _compile(f"(?:{'|'.join(map(_prefix_pattern, units))})\\Z") if units else None

    def redact(self, content: bytes) -> bytes:
        """Return the content with all secrets replaced."""
        return content if self._pattern is None else self._pattern.sub(REDACTED, content)

    def redact_truncated(self, content: bytes) -> bytes:
        """Redact truncated content: its end may be the beginning of a secret."""
        return self._cut_end(self.redact(content))

    async def redact_body(self, content: bytes, *, truncated: bool) -> bytes:
        """Redact a body of any size. Other calls continue between its parts."""
        if self._pattern is None:
            return content
        shown, at = bytearray(), 0
        while at < len(content):
            window = min(len(content), at + WINDOW_BYTES)
            found = self._pattern.search(content, at, window + self._longest)
            if found is not None and found.start() < window:
                shown += content[at : found.start()] + REDACTED
                at = found.end()
            else:
                shown += content[at:window]
                at = window
            await asyncio.sleep(0)
        return self._cut_end(bytes(shown)) if truncated else bytes(shown)

    def _cut_end(self, content: bytes) -> bytes:
        found = self._at_end.search(content, max(0, len(content) - self._longest)) if self._at_end is not None else None
        return content[: found.start()] if found is not None else content


def _compile(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode(), re.IGNORECASE)


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


def _encodings(word: str) -> Iterator[list[str]]:
    """Yield the patterns of the characters of a word in each encoding."""
    yield [_character_pattern(each) for each in word]
    if len(word) < MIN_ENCODED_CHARACTERS:
        return
    content = word.encode()
    yield [rf"{byte:02x}(?:[\s:,-]|0x|\\x){{0,3}}" for byte in content]
    for offset in range(3):
        yield [_base64_pattern(each) for each in _inner_base64(content, offset)]


def _inner_base64(content: bytes, offset: int) -> str:
    """Return the base64 characters that depend only on `content`, if it starts `offset` bytes after a group."""
    encoded = b64encode(bytes(offset) + content).decode().rstrip("=")
    first = (offset * 8 + 5) // 6
    last = (offset + len(content)) * 8 // 6
    return encoded[first:last]


def _base64_pattern(character: str) -> str:
    """Return a pattern of a character in both alphabets, which may be followed by a line break or an escape of one."""
    plain = {"+": r"[+-]|%2b|\\u002b", "/": r"[/_]|%2f|\\/"}.get(character, character)
    return rf"(?:{plain})(?:\\r|\\n|[\r\n]){{0,4}}"


def _character_pattern(character: str) -> str:
    """Return a pattern of a character, as itself or escaped as in URLs, JSON, HTML or program texts."""
    code = ord(character)
    escaped = rf"%(?:25){{0,8}}{code:02x}|\\u{code:04x}|\\x{code:02x}|&#0{{0,8}}{code};?|&#x0{{0,8}}{code:x};?"
    plain = {re.escape(each) for each in (character, f"\\{character}", quote_plus(character), escape(character))}
    return f"(?:{'|'.join(sorted(plain, key=len, reverse=True))}|{escaped})"


def _prefix_pattern(unit: list[str]) -> str:
    """Return a pattern of every beginning of a word, with part of an escape after it."""
    pattern = _PARTIAL_ESCAPE
    for each in reversed(unit[1:-1]):
        pattern = f"(?:{each}{pattern}|{_PARTIAL_ESCAPE})"
    return unit[0] + pattern
