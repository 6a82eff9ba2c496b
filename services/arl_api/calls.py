"""Calls on this node, and their reports."""

import json
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal
from uuid import UUID

from arl_core.domain.model import Fence
from arl_node.timeline import AttemptTimeline
from arl_store.tx import Row

__all__ = ["CallReport", "EndpointCall", "EndpointResponse", "call_from_row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointResponse:
    """The response of an endpoint, without secrets."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    """First bytes of the body."""
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """The end of one attempt."""

    fence: Fence
    outcome: Literal["ok", "user_error", "infra_error", "cancelled"]
    reason: str | None = None
    message: str | None = None
    endpoint_response: EndpointResponse | None = None
    attempts: int = 0
    run_us: int = 0
    timeline: str | None = None
    """JSON from `AttemptTimeline.to_json`."""
    cpu_us: int = 0
    """CPU time in microseconds; always 0, because the CPU time of a call is not measured."""

    @property
    def counted_us(self) -> None:
        """Return None: the run time is what counts."""

    @property
    def weight(self) -> int:
        """Return the size in bytes of the report in the statement that settles it."""
        return len(self.endpoint_response.body) if self.endpoint_response is not None else 0

    def encode(self) -> bytes:
        """Return the report as bytes for the spool."""
        values = asdict(self) | {"fence": [str(self.fence.action_id), self.fence.grant_no]}
        if (response := values["endpoint_response"]) is not None:
            response["body"] = b64encode(response["body"]).decode()
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, data: bytes) -> "CallReport":
        """Return the report of `encode`. Raises LookupError, TypeError or ValueError for other data."""
        values = json.loads(data)
        action_id, grant_no = values.pop("fence")
        if (response := values.pop("endpoint_response")) is not None:
            response = EndpointResponse(**(response | {"body": b64decode(response["body"])}))
        return cls(fence=Fence(UUID(action_id), grant_no), endpoint_response=response, **values)

    @property
    def response_json(self) -> str | None:
        """Return the response without its body as JSON, or None if there was none."""
        if self.endpoint_response is None:
            return None
        return json.dumps(
            {
                "status": self.endpoint_response.status,
                "headers": dict(self.endpoint_response.headers),
                "attempts": self.attempts,
            }
        )


@dataclass(slots=True, eq=False)
class EndpointCall:
    """A call while it is on this node."""

    fence: Fence
    endpoint: str
    method: str
    path: str
    query: Mapping[str, str | list[str]]
    raw_query: str
    """Query string that replaces `query` unless it is empty."""
    headers: Mapping[str, str]
    body: bytes
    idempotent: bool
    timeout_s: float
    timeline: AttemptTimeline = field(default_factory=lambda: AttemptTimeline(time.monotonic(), resource="endpoint"))
    first_sent_at: float | None = None
    """Time of its first request, by the monotonic clock."""
    attempts: int = 0
    is_sending: bool = False
    """True while a request has no response."""
    executions: int = 0
    """Number of failed requests that the endpoint may have executed."""


def call_from_row(row: Row) -> EndpointCall:
    """Return the call of a row. Raises LookupError, TypeError or ValueError if its payload is not a call."""
    payload = json.loads(row.payload)
    payload["body"] = b64decode(payload["body"])
    return EndpointCall(fence=Fence(row.id, row.grant_no), timeout_s=row.timeout_s, **payload)
