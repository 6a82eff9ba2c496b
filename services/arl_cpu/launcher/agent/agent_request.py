"""The request to an agent: one sealed file in memory, with a format that is simple to parse in C."""

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from arl_cpu.launcher.linux.packet_channel import create_sealed_file

__all__ = ["AgentRequest", "RequestMode"]

RequestMode = Literal["run", "source", "files", "session", "watch"]
_NUMBER = struct.Struct("=I")
_MAX_QUOTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request. The file has each field in this order as a count and its items: length, bytes and a zero byte."""

    mode: RequestMode
    """`run` starts `argv`; `source` runs `source` with the interpreter that `argv` starts; `files` starts nothing.

    `session` starts `argv` with the passed files as 0, 1, 2 …, the first its controlling terminal, and leaves it behind
    at once. `watch` starts nothing and lasts until `finish`; processes that appear meanwhile belong to the action. Its
    `argv` is the process id of the session's shell, whose end it reports, or empty.
    """
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    fetch: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    source: bytes = b""
    user: str | None = None
    """User that the program runs as and that owns its files. None in an environment with one user."""

    def pack(self) -> int:
        """Return a new file descriptor. Raises ValueError for text that cannot be passed to a program."""
        for name in self.env:
            if "=" in name or not name:
                raise ValueError(f"{name[:_MAX_QUOTED]!r} is not a valid name of a variable")
        variables = [f"{name}={value}" for name, value in self.env.items()]
        encoded = [[_encode_text(each) for each in texts] for texts in ([self.mode], self.argv, variables, [self.cwd])]
        # Names that cannot exist are allowed: they are reported as missing.
        encoded.append([each.encode(errors="surrogatepass") for each in self.fetch])
        encoded.append([_encode_text(each) for each in self.files])
        parts: list[bytes] = []
        user = [] if self.user is None else [_encode_text(self.user)]
        for items in (*encoded, list(self.files.values()), [self.source], user):
            parts.append(_NUMBER.pack(len(items)))
            for item in items:
                parts += (_NUMBER.pack(len(item)), item, b"\0")
        return create_sealed_file(b"".join(parts))

    @classmethod
    def unpack(cls, file: int) -> "AgentRequest":
        """Decode a packed request. Closes the file."""
        with os.fdopen(file, "rb") as stream:
            content = stream.read()
        lists, at = [], 0
        for _ in range(9):
            items, at = _unpack_items(content, at)
            lists.append(items)
        (mode,), argv, variables, (cwd,), paths = ([os.fsdecode(each) for each in lists[at]] for at in (0, 1, 2, 3, 5))
        return cls(
            mode=mode,  # type: ignore[arg-type]  # a packed mode is valid
            argv=tuple(argv),
            env=dict(each.split("=", 1) for each in variables),
            cwd=cwd,
            fetch=[each.decode(errors="surrogatepass") for each in lists[4]],
            files=dict(zip(paths, lists[6], strict=True)),
            source=lists[7][0],
            user=os.fsdecode(lists[8][0]) if lists[8] else None,
        )


def _encode_text(text: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"{text[:_MAX_QUOTED]!r} contains a zero byte")
    return os.fsencode(text)


def _unpack_items(content: bytes, at: int) -> tuple[list[bytes], int]:
    (count,) = _NUMBER.unpack_from(content, at)
    at += _NUMBER.size
    items = []
    for _ in range(count):
        (length,) = _NUMBER.unpack_from(content, at)
        at += _NUMBER.size
        items.append(content[at : at + length])
        at += length + 1
    return items, at
