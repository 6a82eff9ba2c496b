"""Messages of a sandbox's daemon, parsed from the events of an action's output. No I/O."""

import json
from collections.abc import Iterator
from typing import Any

from arl_wire.actions.output_events import OutputChunk, OutputEnd

__all__ = ["TurnOutput"]

MAX_STDERR_CHARACTERS = 2000


class TurnOutput:
    """The output of one action so far."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """Reason for which the relay ended; None if it did not end by itself."""
        self.end: OutputEnd | None = None
        self.stderr = ""
        self._partial = ""

    def add(self, event: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages that are complete with this server-sent event."""
        fields = dict(line.partition(": ")[::2] for line in event.decode().splitlines())
        name, data = fields.get("event"), fields.get("data", "")
        if name == "end":
            self.end = OutputEnd.model_validate_json(data)
        elif name == "stderr":
            self.stderr = (self.stderr + OutputChunk.model_validate_json(data).text)[-MAX_STDERR_CHARACTERS:]
        elif name == "stdout":
            *lines, self._partial = (self._partial + OutputChunk.model_validate_json(data).text).split("\n")
            for line in lines:
                message = json.loads(line)
                if "turn" in message:
                    self.reason = message["turn"]
                else:
                    yield message
