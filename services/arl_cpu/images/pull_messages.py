"""Messages between the node manager and the process that pulls an image: one JSON object a line."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from arl_core.images.pull_planning import ImageFailure

__all__ = [
    "ImagePulled",
    "ImageResolved",
    "PullEvent",
    "PullFailure",
    "PullProgress",
    "PullRequest",
    "decode_event",
    "encode_event",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """What the process is to pull, and its limits."""

    store: str
    image: str
    registries: str | None
    max_mib: int
    max_members: int
    parallel: int
    give_up_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResolved:
    """The image exists. The process waits for a line before it downloads the missing layers."""

    kind: ClassVar[str] = "resolved"
    digest: str
    bytes: int
    """Bytes of all compressed layers."""
    missing_bytes: int
    layers: Mapping[str, int] = field(default_factory=dict)
    """Compressed bytes of each layer, by the digest of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """Bytes of layers that are here, and why the process waits."""

    kind: ClassVar[str] = "progress"
    bytes_done: int
    waiting: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePulled:
    """The image is in the store."""

    kind: ClassVar[str] = "pulled"
    bytes: int
    """Unpacked bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFailure:
    """The image cannot be pulled."""

    kind: ClassVar[str] = "failed"
    reason: ImageFailure
    message: str


PullEvent = ImageResolved | PullProgress | ImagePulled | PullFailure
_EVENTS = {each.kind: each for each in (ImageResolved, PullProgress, ImagePulled, PullFailure)}


def encode_event(event: PullEvent) -> str:
    """Return an event as a line."""
    return json.dumps({"kind": event.kind, **asdict(event)}) + "\n"


def decode_event(line: bytes) -> PullEvent:
    """Return the event of a line. Raises ValueError."""
    fields: dict[str, Any] = json.loads(line)
    kind = fields.pop("kind")
    if kind not in _EVENTS:
        raise ValueError(f"event {kind!r} of the pull is unknown")
    if "reason" in fields:
        fields["reason"] = ImageFailure(fields["reason"])
    event: PullEvent = _EVENTS[kind](**fields)
    return event
