"""How a worker takes part in batches that several workers compute together, as far as torch has no part in it."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

__all__ = ["Meetings", "Part", "PeerGone", "PeerNotReady", "Peers", "mark"]


class PeerGone(Exception):
    """Another worker of the same batch ended, failed or did not come."""


class PeerNotReady(Exception):
    """Another worker of the same batch could not begin, or has something else of that name; so none began."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of `size` workers in a batch of all of them, who find each other by the file at `path`.

    `meeting`: another number is another one, whatever its path. `limit_s`: of what one waits for the others.
    """

    path: str
    meeting: int
    rank: int
    size: int
    limit_s: float


class Peers(Protocol):
    """Who computes a batch with this worker. Raises `PeerGone`, wherever one is waited for that does not come."""

    def agree(self, about: int) -> bool:
        """Whether all say the same; 0 agrees with nothing."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """What is added meanwhile is over these. If it fails, they need not wait."""
        ...


class Meetings:
    """Those that a worker is in: of as many workers as there are in each, the last one."""

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self._joined: dict[int, tuple[int, Any]] = {}

    def peers(self, part: Part | None) -> Peers:
        """Nobody where there is no part. Raises `PeerGone` where they do not come."""
        if part is None:
            return _Nobody()
        from arl_gpu.collective import Ranks  # torch comes with it

        if (before := self._joined.pop(part.size, None)) is not None and before[0] != part.meeting:
            before[1].leave()
            before = None
        ranks: Ranks = before[1] if before is not None else Ranks(part, cuda=self._cuda)
        self._joined[part.size] = part.meeting, ranks
        return ranks


class _Nobody:
    def agree(self, about: int) -> bool:
        return True

    def computing(self) -> AbstractContextManager[None]:
        return nullcontext()


def mark(spec: Mapping[str, Any], part: Part | None, made_of: str = "") -> int:
    """What all ranks of a batch have alike: what they were told of it, and the files that they have read.

    0 where what is here is not the part that is asked for.
    """
    options = dict(spec.get("options", {}))
    here = options.pop("rank", 0), options.get("tensor_parallel") or 1
    if part is not None and here != (part.rank, part.size):
        return 0
    said = json.dumps({**spec, "options": options, "made_of": made_of}, sort_keys=True)
    return int.from_bytes(sha256(said.encode()).digest()[:7]) | 1
