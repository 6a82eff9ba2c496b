"""Text of programs, services and policies on a terminal: control characters are shown and not executed.

A terminal executes escape sequences: they can change the clipboard, the title and earlier lines, or answer as if the
user had typed. Pipes and files get the bytes unchanged.
"""

import codecs
import re
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

__all__ = ["TerminalConsole", "neutralize", "write_output", "write_text"]

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0d\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and line feed, and characters that reorder the text beside them."""
_DECODERS: dict[str, codecs.IncrementalDecoder] = {}


def neutralize(text: str) -> str:
    r"""Return the text with each control character as its escape, such as `\x1b`. `\r\n` becomes a line feed."""
    return _CONTROLS.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class TerminalConsole(Console):
    """A rich console that neutralizes the printed texts on a terminal. Its own styles are unaffected."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render a text or table, without control characters in its contents."""
        for segment in super().render(renderable, options):
            if segment.control or not self.is_terminal:
                yield segment
            else:
                yield Segment(neutralize(segment.text), segment.style)


def write_text(text: str, stream: IO[str] | None = None) -> None:
    """Write a text to standard output, or to `stream`; neutralized if it is a terminal."""
    target = stream or sys.stdout
    target.write(neutralize(text) if target.isatty() else text)
    target.flush()


def write_output(data: bytes, stream: str) -> None:
    """Write a part of a program's output to the stream `stdout` or `stderr`; neutralized if it is a terminal."""
    target: Any = sys.stdout if stream == "stdout" else sys.stderr
    if not target.isatty():
        target.buffer.write(data)
        target.buffer.flush()
        return
    decoder = _DECODERS.setdefault(stream, codecs.getincrementaldecoder("utf-8")("replace"))
    write_text(decoder.decode(data), target)
