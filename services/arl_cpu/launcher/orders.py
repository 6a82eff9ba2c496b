"""What an agent is told to do: one sealed file in memory, laid out so that a few lines of C can read it too."""

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .channel import as_file

__all__ = ["Mode", "Order"]

Mode = Literal["run", "source", "files", "session", "watch"]
_NUMBER = struct.Struct("=I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """In the file: each field in this order as a count and its items, an item as its length, its bytes and a zero."""

    mode: Mode
    """`run` starts `argv`; `source` runs `source` by the interpreter that `argv` starts; `files` starts nothing."""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    fetch: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    source: bytes = b""

    def pack(self) -> int:
        """A new file descriptor."""
        variables = [f"{name}={value}" for name, value in self.env.items()]
        lists = ([self.mode], self.argv, variables, [self.cwd], self.fetch, list(self.files))
        encoded = [[each.encode(errors="surrogatepass") for each in texts] for texts in lists]
        parts: list[bytes] = []
        for items in (*encoded, list(self.files.values()), [self.source]):
            parts.append(_NUMBER.pack(len(items)))
            for item in items:
                parts += (_NUMBER.pack(len(item)), item, b"\0")
        return as_file(b"".join(parts))

    @classmethod
    def unpack(cls, file: int) -> "Order":
        """Closes the file. Raises ValueError for text that is none."""
        with os.fdopen(file, "rb") as stream:
            content = stream.read()
        lists, at = [], 0
        for _ in range(8):
            items, at = _items(content, at)
            lists.append(items)
        (mode,), argv, variables, (cwd,), fetch, paths = (
            [each.decode(errors="surrogatepass") for each in items] for items in lists[:6]
        )
        return cls(
            mode=mode,  # type: ignore[arg-type]  # as it was packed
            argv=tuple(argv),
            env=dict(each.split("=", 1) for each in variables),
            cwd=cwd,
            fetch=fetch,
            files=dict(zip(paths, lists[6], strict=True)),
            source=lists[7][0],
        )


def _items(content: bytes, at: int) -> tuple[list[bytes], int]:
    (count,) = _NUMBER.unpack_from(content, at)
    at += _NUMBER.size
    items = []
    for _ in range(count):
        (length,) = _NUMBER.unpack_from(content, at)
        at += _NUMBER.size
        items.append(content[at : at + length])
        at += length + 1
    return items, at
