"""Calls that are on this node, and how they ended."""

import json
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from arl_core.domain.model import Fence
from arl_node.timeline import AttemptTimeline
from arl_store.tx import Row

__all__ = ["CallReport", "EndpointCall", "EndpointResponse", "call_from_row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointResponse:
    """What an endpoint said, without what is secret."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    """The first of it."""
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """How one attempt ended."""

    fence: Fence
    outcome: Literal["ok", "user_error", "infra_error", "cancelled"]
    reason: str | None = None
    message: str | None = None
    endpoint_response: EndpointResponse | None = None
    tries: int = 0
    run_us: int = 0
    timeline: str | None = None
    """JSON: `Timeline.written`."""
    cpu_us: int = 0
    """Nobody counts what a call costs this process."""

    @property
    def weight(self) -> int:
        return len(self.endpoint_response.body) if self.endpoint_response is not None else 0

    @property
    def response_json(self) -> str | None:
        """JSON: what there was of an answer, but for its body."""
        if self.endpoint_response is None:
            return None
        return json.dumps(
            {
                "status": self.endpoint_response.status,
                "headers": dict(self.endpoint_response.headers),
                "tries": self.tries,
            }
        )


@dataclass(slots=True, eq=False)
class EndpointCall:
    """One action while it is here."""

    fence: Fence
    endpoint: str
    method: str
    path: str
    query: Mapping[str, str | list[str]]
    raw_query: str
    """Instead of `query`, if there is any."""
    headers: Mapping[str, str]
    body: bytes
    idempotent: bool
    timeout_s: float
    timeline: AttemptTimeline = field(default_factory=lambda: AttemptTimeline(time.monotonic(), resource="endpoint"))
    first_sent_at: float | None = None
    """When its first request was sent, by the monotonic clock."""
    tries: int = 0


def call_from_row(row: Row) -> EndpointCall:
    """Raises LookupError, TypeError or ValueError where its payload is none of a call."""
    payload = json.loads(row.payload)
    payload["body"] = b64decode(payload["body"])
    return EndpointCall(fence=Fence(row.id, row.grant_no), timeout_s=row.timeout_s, **payload)
