"""A worker's participation in batches that several workers compute together. This module does not import torch."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

__all__ = ["PeerLost", "PeerNotReady", "RankInfo", "RankPeers", "RendezvousRegistry", "model_fingerprint"]


class PeerLost(Exception):
    """A worker of the batch that ended, failed or did not connect."""


class PeerNotReady(Exception):
    """A worker of the batch that could not begin, or has a different model of that name. No worker began."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A rank of a batch with `size` ranks; they connect by the file at `path`.

    `meeting`: the number of the rendezvous; another number is another rendezvous, even if the path is equal. `limit_s`:
    seconds that a rank waits for the others.
    """

    path: str
    meeting: int
    rank: int
    size: int
    limit_s: float


class RankPeers(Protocol):
    """The other ranks of a batch. Every method raises `PeerLost` if a rank does not respond."""

    def all_agree(self, value: int) -> bool:
        """Gather `value` from all ranks; return True if every rank sent the same non-zero value."""
        ...

    def batch_scope(self) -> AbstractContextManager[None]:
        """Enter a batch: sums inside are over these ranks. On failure this rank leaves, so the others do not wait."""
        ...


class RendezvousRegistry:
    """The groups that a worker has joined: the last one of each size."""

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self._joined: dict[int, tuple[int, Any]] = {}

    def get_peers(self, rank_info: RankInfo | None) -> RankPeers:
        """Return the peers of a rank; none without `rank_info`. Raises `PeerLost` if they do not connect."""
        if rank_info is None:
            return _NoPeers()
        from arl_gpu.parallel.collective import RankGroup  # imports torch

        if (before := self._joined.pop(rank_info.size, None)) is not None and before[0] != rank_info.meeting:
            before[1].leave()
            before = None
        ranks: RankGroup = before[1] if before is not None else RankGroup(rank_info, cuda=self._cuda)
        self._joined[rank_info.size] = rank_info.meeting, ranks
        return ranks


class _NoPeers:
    def all_agree(self, value: int) -> bool:
        """Return True: there are no other ranks."""
        return True

    def batch_scope(self) -> AbstractContextManager[None]:
        """Return an empty context."""
        return nullcontext()


def model_fingerprint(spec: Mapping[str, Any], rank_info: RankInfo | None, files_fingerprint: str = "") -> int:
    """Return a hash of the specification and the files, which must be equal on all ranks of a batch.

    Returns 0 if this worker has another part than the requested one.
    """
    options = dict(spec.get("options", {}))
    here = options.pop("rank", 0), options.get("tensor_parallel") or 1
    if rank_info is not None and here != (rank_info.rank, rank_info.size):
        return 0
    said = json.dumps({**spec, "options": options, "made_of": files_fingerprint}, sort_keys=True)
    return int.from_bytes(sha256(said.encode()).digest()[:7]) | 1
