"""Workers that compute a batch together: whether all of them can, and sums over what each of them found.

Their connections are of this machine alone. Where a worker ends or leaves, the others' next exchange fails at once.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import FileStore, PrefixStore, ProcessGroupGloo

from arl_gpu.together import Part, PeerGone

__all__ = ["Ranks", "add"]

LOOPBACK = "127.0.0.1"


class Ranks:
    """One rank's end. Made once all of them are there. Answers `arl_gpu.together.Peers`."""

    def __init__(self, part: Part, *, cuda: bool) -> None:
        """Raises `PeerGone` where the others do not come."""
        self._size = part.size
        self._talk: Any = None
        self._sum: Any = None
        # A store opens its file once more when it ends, and without it ends the process: the path has to last as long.
        self._file = os.open(part.path, os.O_RDWR | os.O_CLOEXEC)
        if (trouble := self._join(part, cuda)) is not None:
            self.leave()
            raise PeerGone(trouble)

    def _join(self, part: Part, cuda: bool) -> str | None:
        """What went wrong, and not an exception, which would keep the store."""
        limit = timedelta(seconds=part.limit_s)
        options = ProcessGroupGloo._Options()
        options._timeout = limit
        # Without a device of its own it would listen on whatever address the host's name has.
        options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        try:
            store = FileStore(f"/proc/self/fd/{self._file}", part.size)
            store.set_timeout(limit)
            self._talk = ProcessGroupGloo(PrefixStore("talk", store), part.rank, part.size, options)
            self._sum = _nccl(PrefixStore("sum", store), part, limit) if cuda else self._talk
        except RuntimeError as error:
            return f"the workers of its group did not come: {error}"
        return None

    def agree(self, about: int) -> bool:
        said = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        with _gone():
            self._talk.allgather([said], [torch.tensor([about])]).wait()
        return about != 0 and all(each.item() == about for each in said)

    def add(self, tensor: Any) -> Any:
        with _gone():
            self._sum.allreduce([tensor]).wait()
        return tensor

    @contextmanager
    def computing(self) -> Iterator[None]:
        before = _NOW.set(self)
        try:
            yield
        except BaseException:
            self.leave()
            raise
        finally:
            _NOW.reset(before)

    def leave(self) -> None:
        """The others learn of it at once: nothing else holds the connections, so they are closed."""
        if self._sum is not None and self._sum is not self._talk:
            self._sum.abort()
        self._sum = self._talk = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_NOW: ContextVar[Ranks] = ContextVar("ranks")


def add(tensor: Any) -> Any:
    """The sum over all ranks. Raises `LookupError` outside of a batch that they compute together."""
    return _NOW.get().add(tensor.contiguous())


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerGone(f"a worker of the same group is gone: {error}") from error


def _nccl(store: Any, part: Part, limit: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL  # no build of torch without CUDA has it

    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # else its first meeting is at any address of the machine
    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(store, part.rank, part.size, options)
