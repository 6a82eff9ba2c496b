"""Limits on JSON request bodies, checked while the body arrives and before it is parsed.

A parser needs about 1 µs and up to 1 KB for each value, so 24 MiB of empty lists block an event loop for seconds. This
check needs about 0.1 µs a value, runs on each part of the body separately, and stops at the first limit.
"""

import re

__all__ = ["JsonLimitExceeded", "JsonScanner", "JsonTooDeep"]

MAX_DEPTH = 128
MAX_VALUES = 200_000
"""Maximum arrays, objects, strings and literals. A batch of 1000 actions has about 40,000."""
MAX_NUMBERS = 4_000_000
"""Maximum numbers in arrays, such as token ids. Parsing a number takes a tenth of the time of other values."""
MAX_MEMBERS = 10_000
"""Maximum members of one object. Each unknown member may become one validation error."""
_TOKEN = re.compile(rb'["\[\]{}]|[^"\[\]{}]++')
_STRING_PART = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_LITERALS = (b"null", b"true", b"false")
_OPENING, _CLOSING, _QUOTE = b"[{", b"]}", ord('"')


class JsonLimitExceeded(Exception):
    """The document has too many values; the message names the limit."""


class JsonTooDeep(Exception):
    """The document has too many nested levels, or is not UTF-8."""


class JsonScanner:
    """A scanner of one JSON document that arrives in parts. It counts values and does not check the syntax."""

    def __init__(self) -> None:
        self._in_string = False
        self._escaped = False
        """True if the previous part ended after a backslash in a string."""
        self._members: list[int] = []
        """Commas of each open array as -1, and of each open object."""
        self._values = 0
        self._numbers = 0

    def feed(self, part: bytes) -> None:
        """Scan the next part. Raises `JsonLimitExceeded` or `JsonTooDeep`."""
        if b"\0" in part:
            raise JsonTooDeep("must be UTF-8 without NUL characters")  # UTF-16 would hide its values from this scan
        at, length = 0, len(part)
        while at < length:
            if self._in_string:
                at = self._skip_string(part, at)
                continue
            found = _TOKEN.match(part, at)
            if found is None:
                raise AssertionError("the pattern matches every byte")
            at = found.end()
            first = part[found.start()]
            if first == _QUOTE:
                self._in_string = True
                self._count_values(1)
            elif first in _OPENING:
                self._open(is_object=first == _OPENING[1])
            elif first in _CLOSING:
                if self._members:
                    self._members.pop()
            else:
                self._count_commas(found[0].count(b","))
                self._count_values(sum(map(found[0].count, _LITERALS)))

    def _skip_string(self, part: bytes, at: int) -> int:
        """Return the position after the string, or after the part if the string continues."""
        if self._escaped:
            self._escaped = False
            at += 1
        found = _STRING_PART.match(part, at)
        end = found.end() if found is not None else at
        if end >= len(part):
            return len(part)
        if part[end] == _QUOTE:
            self._in_string = False
        else:  # a backslash at the end of the part
            self._escaped = True
        return end + 1

    def _open(self, *, is_object: bool) -> None:
        self._members.append(0 if is_object else -1)
        if len(self._members) > MAX_DEPTH:
            raise JsonTooDeep(f"must have at most {MAX_DEPTH} nested levels of arrays and objects")
        self._count_values(1)

    def _count_commas(self, commas: int) -> None:
        if not commas:
            return
        self._numbers += commas
        if self._numbers > MAX_NUMBERS:
            raise JsonLimitExceeded(f"must have at most {MAX_NUMBERS} array elements: send several requests")
        if self._members and self._members[-1] >= 0:
            self._members[-1] += commas
            if self._members[-1] >= MAX_MEMBERS:
                raise JsonLimitExceeded(f"must have at most {MAX_MEMBERS} members in each object")

    def _count_values(self, count: int) -> None:
        self._values += count
        if self._values > MAX_VALUES:
            raise JsonLimitExceeded(
                f"must have at most {MAX_VALUES} strings, arrays and objects: send several requests"
            )
