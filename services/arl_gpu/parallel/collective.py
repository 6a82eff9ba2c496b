"""Collectives of the workers that compute a batch together: agreement that all can begin, and sums of their results.

The connections stay on this machine. If a worker ends or leaves, the others' next exchange fails at once.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import FileStore, PrefixStore, ProcessGroupGloo

from arl_gpu.parallel.rendezvous import PeerLost, RankInfo

__all__ = ["RankGroup", "all_reduce_sum"]

LOOPBACK_ADDRESS = "127.0.0.1"


class RankGroup:
    """A rank's end of the connections, as an `arl_gpu.parallel.rendezvous.RankPeers`."""

    def __init__(self, rank_info: RankInfo, *, cuda: bool) -> None:
        """Connect to the other ranks. Raises `PeerLost` if they do not connect."""
        self._size = rank_info.size
        self._control_group: Any = None
        self._data_group: Any = None
        # The store reopens its file on destruction, and ends the process if that fails, so the path must last as long.
        self._file = os.open(rank_info.path, os.O_RDWR | os.O_CLOEXEC)
        if (trouble := self._join(rank_info, cuda)) is not None:
            self.leave()
            raise PeerLost(trouble)

    def _join(self, rank_info: RankInfo, cuda: bool) -> str | None:
        """Join the group. Return an error message, because an exception would keep the store alive."""
        limit = timedelta(seconds=rank_info.limit_s)
        options = ProcessGroupGloo._Options()
        options._timeout = limit
        # Set the device explicitly: otherwise it would listen on any address of the host's name.
        options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK_ADDRESS)]
        try:
            store = FileStore(f"/proc/self/fd/{self._file}", rank_info.size)
            store.set_timeout(limit)
            self._control_group = ProcessGroupGloo(PrefixStore("talk", store), rank_info.rank, rank_info.size, options)
            self._data_group = (
                _create_nccl_group(PrefixStore("sum", store), rank_info, limit) if cuda else self._control_group
            )
        except RuntimeError as error:
            return f"the other workers of the group did not connect: {error}"
        return None

    def all_agree(self, value: int) -> bool:
        """Return True if all ranks passed the same value other than 0. Raises `PeerLost`."""
        said = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        with _raise_peer_lost():
            self._control_group.allgather([said], [torch.tensor([value])]).wait()
        return value != 0 and all(each.item() == value for each in said)

    def all_reduce_sum(self, tensor: Any) -> Any:
        """Sum a tensor over all ranks in place and return it. Raises `PeerLost`."""
        with _raise_peer_lost():
            self._data_group.allreduce([tensor]).wait()
        return tensor

    @contextmanager
    def batch_scope(self) -> Iterator[None]:
        """Make this group the one of the batch; leave it if the batch fails."""
        before = _CURRENT.set(self)
        try:
            yield
        except BaseException:
            self.leave()
            raise
        finally:
            _CURRENT.reset(before)

    def leave(self) -> None:
        """Close the connections, so that the other ranks detect the departure at once."""
        if self._data_group is not None and self._data_group is not self._control_group:
            self._data_group.abort()
        self._data_group = self._control_group = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_CURRENT: ContextVar[RankGroup] = ContextVar("ranks")


def all_reduce_sum(tensor: Any) -> Any:
    """Return the sum over all ranks. Raises `LookupError` outside a batch of a group."""
    return _CURRENT.get().all_reduce_sum(tensor.contiguous())


@contextmanager
def _raise_peer_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"another worker of the group was lost: {error}") from error


def _create_nccl_group(store: Any, rank_info: RankInfo, limit: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL  # builds of torch without CUDA lack it

    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # otherwise its first connection uses any address of the machine
    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(store, rank_info.rank, rank_info.size, options)
