"""How a worker takes part in batches that several workers compute together, as far as torch has no part in it."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

__all__ = ["PeerLost", "PeerNotReady", "RankInfo", "RankPeers", "RendezvousRegistry", "model_fingerprint"]


class PeerLost(Exception):
    """Another worker of the same batch ended, failed or did not come."""


class PeerNotReady(Exception):
    """Another worker of the same batch could not begin, or has something else of that name; so none began."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One of `size` workers in a batch of all of them, who find each other by the file at `path`.

    `meeting`: another number is another one, whatever its path. `limit_s`: of what one waits for the others.
    """

    path: str
    meeting: int
    rank: int
    size: int
    limit_s: float


class RankPeers(Protocol):
    """Who computes a batch with this worker. Raises `PeerGone`, wherever one is waited for that does not come."""

    def all_agree(self, value: int) -> bool:
        """Whether all say the same; 0 agrees with nothing."""
        ...

    def batch_scope(self) -> AbstractContextManager[None]:
        """What is added meanwhile is over these. If it fails, they need not wait."""
        ...


class RendezvousRegistry:
    """Those that a worker is in: of as many workers as there are in each, the last one."""

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self._joined: dict[int, tuple[int, Any]] = {}

    def get_peers(self, rank_info: RankInfo | None) -> RankPeers:
        """Nobody where there is no part. Raises `PeerGone` where they do not come."""
        if rank_info is None:
            return _NoPeers()
        from arl_gpu.parallel.collective import RankGroup  # torch comes with it

        if (before := self._joined.pop(rank_info.size, None)) is not None and before[0] != rank_info.meeting:
            before[1].leave()
            before = None
        ranks: RankGroup = before[1] if before is not None else RankGroup(rank_info, cuda=self._cuda)
        self._joined[rank_info.size] = rank_info.meeting, ranks
        return ranks


class _NoPeers:
    def all_agree(self, value: int) -> bool:
        return True

    def batch_scope(self) -> AbstractContextManager[None]:
        return nullcontext()


def model_fingerprint(spec: Mapping[str, Any], rank_info: RankInfo | None, files_fingerprint: str = "") -> int:
    """What all ranks of a batch have alike: what they were told of it, and the files that they have read.

    0 where what is here is not the part that is asked for.
    """
    options = dict(spec.get("options", {}))
    here = options.pop("rank", 0), options.get("tensor_parallel") or 1
    if rank_info is not None and here != (rank_info.rank, rank_info.size):
        return 0
    said = json.dumps({**spec, "options": options, "made_of": files_fingerprint}, sort_keys=True)
    return int.from_bytes(sha256(said.encode()).digest()[:7]) | 1
