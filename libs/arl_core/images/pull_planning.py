"""Decisions about pulls: on which node to pull an image, and when actions can no longer get it.

An expected pull is weighed against waiting. Actions wait on a node that has the image, or most of its bytes, as long as
a pull elsewhere would take.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Literal

__all__ = [
    "PULLS_IMAGES",
    "ImageCopy",
    "ImageDemand",
    "ImageFailure",
    "PullCandidate",
    "PullDecision",
    "decide_pull",
    "expected_pull_s",
]

PULLS_IMAGES = "images"
"""Capability of nodes that pull images."""
PULL_OVERHEAD_S = 0.5
"""Seconds of a pull without any missing bytes: a process, a manifest and a record."""
DEFAULT_BYTES_PER_S = 30e6
"""Bytes a second of download and unpacking until pulls were measured. Measured: 200 MiB in 4 layers take 3 to 7 s."""
UNKNOWN_PULL_S = 10.0
"""Expected seconds of a pull of an image of which no node knows the layers."""
WAIT_FOR_ROOM_S = 10.0
"""Expected seconds until a node without room has room."""
FAILURE_HOLDS_S = 10.0
"""Seconds for which a failure also applies to actions that are submitted after it."""


class ImageFailure(StrEnum):
    """Why a node could not pull an image. Actions that need the image settle as `infra_error` with this reason."""

    NOT_FOUND = "image_not_found"  # the registry has no such repository, tag or digest
    UNAUTHORIZED = "image_unauthorized"  # the registry refuses the credentials, or demands some
    INVALID = "image_invalid"  # a wrong digest, another architecture, an unsafe or too large layer
    REGISTRY_UNAVAILABLE = "registry_unavailable"  # no answer, or server errors, until the node gave up
    INTERRUPTED = "image_pull_interrupted"  # the process that pulls ended without a result
    STORE_FULL = "image_store_full"  # images in use leave no room on the node


DEFINITE_FAILURES = frozenset({ImageFailure.NOT_FOUND, ImageFailure.UNAUTHORIZED, ImageFailure.INVALID})
"""Failures that another node would have as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCopy:
    """The state of an image on one node."""

    node: int
    state: Literal["wanted", "pulling", "ready", "failed"]
    changed_at: float
    """Time of the last change, by the database's clock."""
    reason: ImageFailure | None = None
    """Reason of a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDemand:
    """The queued actions that need an image and have no node yet."""

    oldest_submitted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PullCandidate:
    """A node that can pull the image and could run an action with it."""

    node: int
    has_room: bool
    """True if an action fits now."""
    free_milli: int
    pull_s: float
    """Expected seconds of the pull; 0 if the node has the image."""


@dataclass(frozen=True, slots=True)
class PullDecision:
    """A pull on `node`, or a failure of the actions submitted up to `fails_until`, or neither."""

    node: int | None = None
    failure: ImageFailure | None = None
    fails_until: float = -inf


def expected_pull_s(missing_bytes: int | None, bytes_per_s: float | None) -> float:
    """Return the expected seconds of a pull. `missing_bytes` is None if the layers of the image are unknown."""
    if missing_bytes is None:
        return UNKNOWN_PULL_S
    return PULL_OVERHEAD_S + missing_bytes / (bytes_per_s or DEFAULT_BYTES_PER_S)


def decide_pull(
    demand: ImageDemand, copies: Sequence[ImageCopy], candidates: Collection[PullCandidate], *, now: float
) -> PullDecision:
    """Return where to pull an image, or why its actions fail, or an empty decision to wait.

    As many pulls run at once as nodes have the image, but at least one.
    """
    able = {each.node: each for each in candidates}
    ready = [copy.node for copy in copies if copy.state == "ready" and copy.node in able]
    active = sum(copy.state in ("wanted", "pulling") and copy.node in able for copy in copies)
    failures = {copy.node: copy for copy in copies if copy.state == "failed" and _holds(copy, demand, now)}
    if not ready and not active and (failed := _failure(failures.values(), able.keys())) is not None:
        return failed
    if active >= max(1, len(ready)):
        return PullDecision()
    open_nodes = [each for each in candidates if each.node not in failures and each.node not in ready]
    if ready:
        waited_s = now - demand.oldest_submitted
        open_nodes = [each for each in open_nodes if each.has_room and waited_s >= each.pull_s]
    best = min(open_nodes, key=_preference, default=None)
    return PullDecision(best.node if best is not None else None)


def _holds(copy: ImageCopy, demand: ImageDemand, now: float) -> bool:
    """Return True if a failure applies to the oldest action. A full store is tried again in any case."""
    if now - copy.changed_at < FAILURE_HOLDS_S:
        return True
    return copy.reason is not ImageFailure.STORE_FULL and copy.changed_at >= demand.oldest_submitted


def _failure(failures: Collection[ImageCopy], able: Collection[int]) -> PullDecision | None:
    """Return the failure that every node would have, or that every node has."""
    definite = [copy for copy in failures if copy.reason in DEFINITE_FAILURES]
    if definite:
        return _failed(definite)
    if able and set(able) <= {copy.node for copy in failures}:
        lasting = [copy for copy in failures if copy.node in able and copy.reason is not ImageFailure.STORE_FULL]
        if len(lasting) == len(able):
            return _failed(lasting)
    return None


def _failed(copies: Iterable[ImageCopy]) -> PullDecision:
    last = max(copies, key=lambda copy: copy.changed_at)
    return PullDecision(failure=last.reason, fails_until=last.changed_at + FAILURE_HOLDS_S)


def _preference(candidate: PullCandidate) -> tuple[float, int, int]:
    return candidate.pull_s + (0.0 if candidate.has_room else WAIT_FOR_ROOM_S), -candidate.free_milli, candidate.node
