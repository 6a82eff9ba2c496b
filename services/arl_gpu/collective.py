"""Workers that compute a batch together: whether all of them can, and sums over what each of them found.

Their connections are of this machine alone. Where a worker ends or leaves, the others' next exchange fails at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import FileStore, PrefixStore, ProcessGroupGloo

__all__ = ["Ranks", "add"]

LOOPBACK = "127.0.0.1"


class Ranks:
    """One rank's end. Made once all of them are there; `path` is a file that only these ranks ever used."""

    def __init__(self, path: str, *, rank: int, size: int, limit_s: float, cuda: bool) -> None:
        """Raises `RuntimeError`, as every exchange does, where the others are not there or not within `limit_s`."""
        self.path, self.size = path, size
        store = FileStore(path, size)
        options = ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=limit_s)
        # Without a device of its own it would listen on whatever address the host's name has.
        options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        self._talk = ProcessGroupGloo(PrefixStore("talk", store), rank, size, options)
        self._sum = _nccl(PrefixStore("sum", store), rank, size, limit_s) if cuda else self._talk

    def agree(self, about: int) -> bool:
        """Whether all ranks say the same; 0 agrees with nothing."""
        said = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._talk.allgather([said], [torch.tensor([about])]).wait()
        return about != 0 and all(each.item() == about for each in said)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """`add` is of these ranks. Whatever goes wrong meanwhile, the others wait for nothing of this one's."""
        before = _NOW.set(self._sum)
        try:
            yield
        except BaseException:
            self.leave()
            raise
        finally:
            _NOW.reset(before)

    def leave(self) -> None:
        """The others learn of it with their next exchange."""
        for group in {self._sum, self._talk}:
            group.abort()


_NOW: ContextVar[Any] = ContextVar("sum")


def add(tensor: Any) -> Any:
    """In its place, the sum over all ranks. Raises `LookupError` outside of a batch that they compute together."""
    group = _NOW.get()
    summed = tensor.contiguous()
    group.allreduce([summed]).wait()
    return summed


def _nccl(store: Any, rank: int, size: int, limit_s: float) -> Any:
    from torch.distributed import ProcessGroupNCCL  # no build of torch without CUDA has it

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=limit_s)
    return ProcessGroupNCCL(store, rank, size, options)
