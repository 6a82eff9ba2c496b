"""Measure how fast a service is restored to a device and evicted, compared with a plain copy of the same bytes.

`python -m arl_bench.gpu.copy_speed DEVICE MIB REPEATS` prints figures as JSON. The weights are random bytes of the
size of a model in bfloat16, because copies do not depend on values. The forward pass is one product with each square
layer. It reads every byte, as a model does.
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

from arl_gpu.devices.interface import Device
from arl_gpu.models.weight_buffer import Chunk, load_private
from arl_gpu.worker.host_memory import memory_limit_bytes
from arl_gpu.worker.process import create_device
from arl_gpu.worker.residency import DeviceResidency

__all__ = ["measure_copies"]

MIB = 1 << 20
CHUNK_BYTES = 64 * MIB
LAYER_WIDTH = 4096
"""Width of a layer, as in models with 8 billion parameters."""
SERVICE_NAME = "synthetic"


@dataclass
class _RandomWeights:
    content: memoryview


def measure_copies(device: str, mib: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each repeat. Raises if the device is missing, or if it or this machine lacks memory."""
    # The weights, plus their copy on a CPU device. A GPU needs pinned memory for the plain copy instead, rounded up by
    # torch to a power of two.
    needed = 2 * mib * MIB if device == "cpu" else mib * MIB + (1 << (mib * MIB - 1).bit_length())
    if needed > memory_limit_bytes():
        raise MemoryError(
            f"{needed // MIB} MiB are needed, and this machine has {memory_limit_bytes() // MIB}: ask for fewer"
        )
    measured = _CopyBenchmark(create_device(device, device_mib=mib), mib * MIB)
    found = [measured.run_once() for _ in range(repeats)]
    measured.close()
    return {name: [each[name] for each in found] for name in found[0]}


def _random_chunks(size: int) -> Iterator[Chunk]:
    """Yield chunks of random bytes. The same chunk repeats."""
    numbers = np.random.default_rng(0).integers(0, 2**15, CHUNK_BYTES // 2, np.uint16).view(np.uint8).data
    for start in range(0, size, CHUNK_BYTES):
        yield start, numbers[: size - start]


class _CopyBenchmark:
    def __init__(self, device: Device, size: int) -> None:
        self._device = device
        self._residency = DeviceResidency(device)
        self._weights = _RandomWeights(load_private(size, partial(_random_chunks, size)))
        self._layer = min(2 * LAYER_WIDTH * LAYER_WIDTH, size)
        began = time.monotonic()
        self._residency.load(SERVICE_NAME, self._weights)
        self.register_s = time.monotonic() - began
        self._source = _pin(self._weights.content) if device.kind == "cuda" else self._weights.content
        self._multiply: Callable[[Any], None] = _multiply_on_gpu if device.kind == "cuda" else _multiply_on_cpu

    def run_once(self) -> dict[str, float]:
        restore_s = _measure_s(lambda: self._enter_and_exit(self._residency.use(SERVICE_NAME)))
        evict_s = _measure_s(lambda: self._residency.evict(SERVICE_NAME))
        score_s = _measure_s(self._score)
        self._residency.evict(SERVICE_NAME)
        return {
            "plain_s": self._plain_copy_s(),
            "restore_s": restore_s,
            "evict_s": evict_s,
            "score_s": score_s,
            "register_s": self.register_s,
        }

    def close(self) -> None:
        self._residency.close()

    def _enter_and_exit(self, using: Any) -> None:
        with using:
            pass

    def _score(self) -> None:
        with self._residency.use(SERVICE_NAME) as content:
            for start in range(0, len(content), self._layer):
                self._multiply(content[start : start + self._layer])
            _synchronize(self._device)

    def _plain_copy_s(self) -> float:
        """Measure one copy into one block with the library alone. A GPU copies from memory that torch has pinned."""
        block = self._device.alloc(len(self._weights.content))
        try:
            return _measure_s(lambda: _copy(self._device, block.view(), self._source))
        finally:
            self._device.free(block)


def _pin(content: memoryview) -> Any:
    import torch  # available only with a GPU

    pinned = torch.empty(len(content), dtype=torch.uint8, pin_memory=True)
    return pinned.copy_(torch.frombuffer(content, dtype=torch.uint8))


def _copy(device: Device, target: Any, content: Any) -> None:
    if device.kind == "cuda":
        import torch  # available only with a GPU

        target.copy_(content, non_blocking=True)
        torch.cuda.synchronize()
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(content, np.uint8))


def _multiply_on_gpu(layer: Any) -> None:
    import torch  # available only with a GPU

    square = layer[: layer.numel() // (2 * LAYER_WIDTH) * 2 * LAYER_WIDTH].view(torch.bfloat16).view(-1, LAYER_WIDTH)
    torch.mv(square, torch.ones(LAYER_WIDTH, dtype=torch.bfloat16, device=layer.device))


def _multiply_on_cpu(layer: Any) -> None:
    np.frombuffer(layer, np.uint16).astype(np.uint64).sum()


def _synchronize(device: Device) -> None:
    if device.kind == "cuda":
        import torch  # available only with a GPU

        torch.cuda.synchronize()


def _measure_s(function: Callable[[], object]) -> float:
    begun = time.monotonic()
    function()
    return time.monotonic() - begun


if __name__ == "__main__":
    found = measure_copies(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    json.dump({"seconds": found, "median": {name: median(each) for name, each in found.items()}}, sys.stdout)
