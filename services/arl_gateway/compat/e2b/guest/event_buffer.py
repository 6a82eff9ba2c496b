"""Events of something in a sandbox that wait for an action to carry them to the gateway."""

from __future__ import annotations

from collections import deque
from typing import Any

__all__ = ["EventBuffer"]

MAX_BUFFERED_BYTES = 1 << 20
"""Bytes of events that wait for a client. Beyond them a source is not read."""


class EventBuffer:
    """Events with numbers from 1. Those up to the acknowledged number are dropped."""

    is_counted = True
    """True if the sandbox needs cores until the end of this source."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        """Number of a process. Sources that are no processes have negative numbers."""
        self.deadline: float | None = None
        self.outputs: dict[int, str] = {}
        """Names of the open outputs, by file descriptor."""
        self.unwritten = bytearray()
        """Input that was not written yet."""
        self.events: deque[tuple[int, int, dict[str, Any]]] = deque()
        """Number, bytes and content of each event."""
        self.last_number = 0
        self.buffered = 0
        self.is_followed = True
        self.has_ended = False
        self.ended_at = 0.0
        self.is_overdue = False

    def add(self, event: dict[str, Any], size: int = 0) -> None:
        """Add an event. Without a client, the oldest events are dropped."""
        self.last_number += 1
        self.events.append((self.last_number, size, event))
        self.buffered += size
        while not self.is_followed and len(self.events) > 1:
            self.buffered -= self.events.popleft()[1]

    def acknowledge(self, number: int) -> None:
        """Drop the events up to this number."""
        while self.events and self.events[0][0] <= number:
            self.buffered -= self.events.popleft()[1]

    def may_read(self) -> bool:
        """Return True if the buffer has room for more events."""
        return not self.is_followed or self.buffered < MAX_BUFFERED_BYTES

    def read_output(self, fd: int) -> None:
        """Read from an output, and close it at its end."""
        raise NotImplementedError

    def input_fd(self) -> int | None:
        """Return the descriptor of the input, or None if it is closed."""
        return None

    def write_input(self) -> None:
        """Write queued input as far as it is read."""

    def kill(self, number: int) -> None:
        """Send a signal."""

    def check_end(self) -> bool:
        """Add the end event if the source is over. Return True if it was added."""
        return False
