"""How fast a service comes onto a device and leaves it, beside a plain copy of the same bytes in the same run.

`python -m arl_gpu.copies DEVICE MIB REPEATS`, figures as JSON on standard output. The weights are synthetic, random
bytes of the size of a model in bfloat16: copies do not look at values. The forward is one product with each square
layer of them, which is no model and reads every byte as one does.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from arl_gpu.device import Device
from arl_gpu.host_memory import limit_bytes
from arl_gpu.kept import Piece, own
from arl_gpu.residency import Residency
from arl_gpu.worker import device_of

__all__ = ["copies"]

MIB = 1 << 20
PIECE = 64 * MIB
WIDTH = 4096
"""Of a layer; 8 billion parameters have it."""
NAME = "synthetic"


@dataclass
class _Weights:
    content: memoryview


def copies(device: str, mib: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each repeat. Raises where the device is not there, or has no room, or this machine no memory."""
    # The weights, and on the CPU device their copy; on a GPU what is pinned for the plain one, which torch rounds up.
    needed = 2 * mib * MIB if device == "cpu" else mib * MIB + (1 << (mib * MIB - 1).bit_length())
    if needed > limit_bytes():
        raise MemoryError(f"{needed // MIB} MiB are needed, and this machine has {limit_bytes() // MIB}: ask for fewer")
    measured = _Measured(device_of(device, device_mib=mib), mib * MIB)
    found = [measured.once() for _ in range(repeats)]
    measured.close()
    return {name: [each[name] for each in found] for name in found[0]}


def _pieces(size: int) -> Iterator[Piece]:
    """Random bytes, the same ones again and again."""
    numbers = np.random.default_rng(0).integers(0, 2**15, PIECE // 2, np.uint16).view(np.uint8).data
    for start in range(0, size, PIECE):
        yield start, numbers[: size - start]


class _Measured:
    def __init__(self, device: Device, size: int) -> None:
        self._device = device
        self._residency = Residency(device)
        self._weights = _Weights(own(size, partial(_pieces, size)))
        self._layer = min(2 * WIDTH * WIDTH, size)
        began = time.monotonic()
        self._residency.load(NAME, self._weights)
        self.register_s = time.monotonic() - began
        self._source = _pinned(self._weights.content) if device.kind == "cuda" else self._weights.content
        self._multiply: Callable[[Any], None] = _on_gpu if device.kind == "cuda" else _on_cpu

    def once(self) -> dict[str, float]:
        restore_s = _seconds(lambda: self._use(self._residency.using(NAME)))
        evict_s = _seconds(lambda: self._residency.evict(NAME))
        score_s = _seconds(self._score)
        self._residency.evict(NAME)
        return {
            "plain_s": self._plain(),
            "restore_s": restore_s,
            "evict_s": evict_s,
            "score_s": score_s,
            "register_s": self.register_s,
        }

    def close(self) -> None:
        self._residency.close()

    def _use(self, using: Any) -> None:
        with using:
            pass

    def _score(self) -> None:
        with self._residency.using(NAME) as content:
            for start in range(0, len(content), self._layer):
                self._multiply(content[start : start + self._layer])
            _synchronize(self._device)

    def _plain(self) -> float:
        """One copy into one block, by the library alone: on a GPU from memory that it has pinned itself."""
        block = self._device.alloc(len(self._weights.content))
        try:
            return _seconds(lambda: _copied(self._device, block.view(), self._source))
        finally:
            self._device.free(block)


def _pinned(content: memoryview) -> Any:
    import torch  # only where there is a GPU

    pinned = torch.empty(len(content), dtype=torch.uint8, pin_memory=True)
    return pinned.copy_(torch.frombuffer(content, dtype=torch.uint8))


def _copied(device: Device, target: Any, content: Any) -> None:
    if device.kind == "cuda":
        import torch  # only where there is a GPU

        target.copy_(content, non_blocking=True)
        torch.cuda.synchronize()
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(content, np.uint8))


def _on_gpu(layer: Any) -> None:
    import torch  # only where there is a GPU

    square = layer[: layer.numel() // (2 * WIDTH) * 2 * WIDTH].view(torch.bfloat16).view(-1, WIDTH)
    torch.mv(square, torch.ones(WIDTH, dtype=torch.bfloat16, device=layer.device))


def _on_cpu(layer: Any) -> None:
    np.frombuffer(layer, np.uint16).astype(np.uint64).sum()


def _synchronize(device: Device) -> None:
    if device.kind == "cuda":
        import torch  # only where there is a GPU

        torch.cuda.synchronize()


def _seconds(does: Callable[[], object]) -> float:
    begun = time.monotonic()
    does()
    return time.monotonic() - begun


if __name__ == "__main__":
    found = copies(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    json.dump({"seconds": found, "median": {name: median(each) for name, each in found.items()}}, sys.stdout)
