"""Messages of a sandbox's daemon, parsed from the events of an action's output. No I/O."""

import json
from collections.abc import Iterator
from typing import Any

from arl_core.domain.states import ActionOutcome
from arl_gateway.compat.e2b.errors import GuestCallError
from arl_wire.actions.output_events import OutputChunk, OutputEnd

__all__ = ["ABSENT", "TurnOutput", "turn_error"]

ABSENT = "The sandbox was not found"
"""Text by which E2B's clients recognize a sandbox that has ended or is paused."""

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


def turn_error(output: TurnOutput) -> GuestCallError:
    """Return the error of an action that did not end by itself."""
    end = output.end
    if end is None:
        return GuestCallError("internal", "infra_error: the output of the action was lost")
    if end.outcome is ActionOutcome.CANCELLED:
        return GuestCallError("unavailable", ABSENT)
    why = ": ".join(filter(None, (end.reason, end.message)))
    if end.outcome is ActionOutcome.LIMIT_EXCEEDED:
        return GuestCallError("resource_exhausted", f"limit_exceeded: {why}")
    if end.outcome is ActionOutcome.USER_ERROR and end.exit_code is not None:
        return GuestCallError("internal", f"the sandbox needs python3 for its daemon: {output.stderr.strip()}")
    return GuestCallError("internal", f"infra_error: {end.outcome} ({why})")
