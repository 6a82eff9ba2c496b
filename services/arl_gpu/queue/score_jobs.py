"""Score actions on this node, and their reports."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal
from uuid import UUID

from arl_core.domain.model import Fence
from arl_gpu.models.interface import Entry, Item
from arl_node.timeline import AttemptTimeline
from arl_store.tx import Row

__all__ = ["DEFAULT_MAX_TOKENS", "ScoreJob", "ScoreReport", "parse_job", "text_cost"]

CHARACTERS_PER_TOKEN = 4
"""ASCII characters that are estimated as one token."""
SPECIAL_TOKENS = 2
"""Number of special tokens around every text."""
DEFAULT_MAX_TOKENS = 256
"""Maximum tokens of a text if its service sets no limit; the model cuts off the rest, which costs nothing."""
LOGPROBS_PER_TOKEN_COST = 16
"""Number of returned log-probabilities of other tokens that cost as much as one computed token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReport:
    """The outcome of one attempt. `scores` is JSON with an entry for each item, or None without scores."""

    fence: Fence
    outcome: Literal["ok", "user_error", "infra_error", "cancelled"]
    reason: str | None = None
    message: str | None = None
    scores: str | None = None
    run_us: int = 0
    cpu_us: int = 0
    timeline: str | None = None
    """JSON of `AttemptTimeline.to_json`."""

    @property
    def counted_us(self) -> None:
        """Return None: the run time is what counts."""

    @property
    def weight(self) -> int:
        """Return the size in bytes of the report in the statement that settles it."""
        return len(self.scores or "")

    def encode(self) -> bytes:
        """Return the report as bytes for the spool."""
        fence = [str(self.fence.action_id), self.fence.grant_no]
        return json.dumps(asdict(self) | {"fence": fence}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "ScoreReport":
        """Return the report of `encode`. Raises LookupError, TypeError or ValueError for other data."""
        values = json.loads(data)
        action_id, grant_no = values.pop("fence")
        return cls(fence=Fence(UUID(action_id), grant_no), **values)


@dataclass(slots=True, eq=False)
class ScoreJob:
    """An action that is being scored: its items in order, and the entries of completed items."""

    fence: Fence
    service: str
    timeout_s: float
    items: list[Item]
    costs: list[int]
    timeline: AttemptTimeline = field(default_factory=lambda: AttemptTimeline(time.monotonic()))
    waiting_since: float = 0.0
    """Time of its arrival or its last batch, by the monotonic clock."""
    started_at: float | None = None
    """Start of its first batch, by the monotonic clock."""
    run_started_at: float | None = None
    """Start of its run time, by the monotonic clock; for a judge, the start of its first request."""
    dispatched: int = 0
    """Number of items that went into a batch."""
    done: dict[int, Entry] = field(default_factory=dict)
    """Entries of completed items, by item index."""
    refused_by: set[int] = field(default_factory=set)
    """Numbers of the devices that had no room for some of its items; none is tried again."""
    completion_bytes: int = 0
    """Bytes of the completions in its entries."""
    cpu_s: float = 0.0
    timer: asyncio.TimerHandle | None = None
    tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    """Tasks of its engine requests. They are cancelled when the job ends."""

    def stop_timer(self) -> None:
        """Stop the timer of the job's timeout, if it runs."""
        if self.timer is not None:
            self.timer.cancel()

    @property
    def has_started(self) -> bool:
        """Return True if a batch of the job has started."""
        return self.started_at is not None

    @property
    def remaining_costs(self) -> list[int]:
        """Costs of the items that no batch has had yet."""
        return self.costs[self.dispatched :]

    @property
    def entries(self) -> list[Entry]:
        """Entries of completed items, in the order of the items."""
        return [self.done[at] for at in sorted(self.done)]


def parse_job(row: Row, max_tokens_by_service: Mapping[str, int | None]) -> ScoreJob:
    """Parse the payload of a row. `max_tokens_by_service`: maximum tokens of a text, by service."""
    payload = json.loads(row.payload)
    items: list[Item] = payload["items"]
    service, most = payload["service"], max_tokens_by_service.get(payload["service"]) or DEFAULT_MAX_TOKENS
    costs = [item_cost(item, most) for item in items]
    return ScoreJob(Fence(row.id, row.grant_no), service, row.timeout_s, items, costs)


def item_cost(item: Item, max_tokens: int = DEFAULT_MAX_TOKENS) -> int:
    """Return the estimated tokens of an item: its input, and its share for returned log-probabilities."""
    tokens = min(max_tokens, len(item.get("token_ids", ())))
    for name in ("text", "reference", "prompt"):
        if name in item:
            tokens += text_cost(item[name], max_tokens)
    for message in item.get("messages", ()):
        tokens += text_cost(message["content"], max_tokens)
    said: int = tokens * item.get("top_logprobs", 0) + len(item.get("label_token_ids", ()))
    return max(1, tokens + said // LOGPROBS_PER_TOKEN_COST)


def text_cost(text: str, max_tokens: int = DEFAULT_MAX_TOKENS) -> int:
    """Estimate the tokens of a text; the worker counts them exactly. Most non-ASCII characters are one token each."""
    read = text[: max_tokens * CHARACTERS_PER_TOKEN]
    ascii_characters = len(read) if read.isascii() else len(read.encode("ascii", "ignore"))
    return min(max_tokens, SPECIAL_TOKENS + len(read) - ascii_characters + ascii_characters // CHARACTERS_PER_TOKEN)
