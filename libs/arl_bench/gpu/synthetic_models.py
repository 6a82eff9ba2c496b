"""Services with synthetic weights, and devices that restore them by other strategies. For benchmarks only.

`python -m arl_bench.gpu.synthetic_models FD CONFIG` is a worker like `arl_gpu.worker.process`, for services of kind
`synthetic` and one sharing strategy. Copies and products do not depend on values, so weights of any size can stand in
for a model's. Each service still returns numbers that no other service returns.
"""

import fcntl
import json
import mmap
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from arl_gpu.devices.interface import CopyEvent, Device, DeviceBlock, wait_for_gpu
from arl_gpu.models import loader
from arl_gpu.models.interface import Item, ModelOutput, RewardModel
from arl_gpu.models.weight_buffer import AllocateFn, load_private
from arl_gpu.worker.process import WorkerConfig, serve

__all__ = ["SharedWorkerConfig", "SharingMode", "SyntheticModel"]

MIB = 1 << 20
CPU_WIDTH, GPU_WIDTH = 512, 4096
"""Width of a square layer. Models with 8 billion parameters have the GPU width."""


class SharingMode(StrEnum):
    """The strategies to share one device among services that do not fit at once."""

    KEEP = "keep"
    """Our strategy: host memory has a permanent copy to restore from; an eviction only drops the device's copy."""
    SLEEP = "sleep"
    """Weights are copied out on eviction and in on restore, like an engine in sleep mode."""
    RELOAD = "reload"
    """Weights are read from their file on each restore."""
    SHARE = "share"
    """Resident services, each with a part of the device. Forwards take proportionally longer.

    The services compute one after the other. If this takes longer than the proportional time, results are late.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWorkerConfig(WorkerConfig):
    """The configuration of a worker. `shares`: number of parts of the device; this worker has one."""

    strategy: SharingMode = SharingMode.KEEP
    shares: int = 1

    def open_device(self) -> Device:
        """Open the device. Raises if it is missing or has less memory than `device_mib`."""
        if self.device == "cpu":
            device = WorkerConfig.open_device(self)
        else:
            from arl_gpu.devices.cuda_device import CudaDevice  # also imports torch

            device = CudaDevice(int(self.device.removeprefix("cuda:")), capacity=self.device_mib * MIB)
        wrapped: Device = {SharingMode.SLEEP: _SwapOutDevice, SharingMode.RELOAD: _ReloadDevice}.get(
            SharingMode(self.strategy), lambda same: same
        )(device)
        return wrapped


@dataclass(slots=True)
class _SyntheticWeights:
    content: memoryview

    def allocate(self, allocate_fn: AllocateFn) -> None:
        """Do nothing: the strategy has already allocated the weights."""


class SyntheticModel:
    """A model of equal square layers, which differ between services. They are multiplied with an item's `token_ids`.

    `options`: `name` and `seed`, `mib` of weights, the strategy (`strategy`), `cuda` for computation on a GPU, and
    `shares`, the number of parts of the device.
    """

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        self._on_gpu, self._shares = bool(options["cuda"]), int(options["shares"])
        self._width = GPU_WIDTH if self._on_gpu else CPU_WIDTH
        layer = _make_layer(int(options["seed"]), self._width, on_gpu=self._on_gpu)
        self._layers = max(1, int(options["mib"]) * MIB // len(layer))
        size = len(layer) * self._layers
        content = load_private(size, lambda: ((start, memoryview(layer)) for start in range(0, size, len(layer))))
        self._lock_path = directory / "turn"
        on_disk = options["strategy"] == SharingMode.RELOAD
        self.weights = _SyntheticWeights(_write_to_disk(directory / options["name"], content) if on_disk else content)

    @property
    def backend(self) -> str:
        return "torch" if self._on_gpu else "numpy"

    def score(self, items: Sequence[Item], content: Any) -> ModelOutput:
        begun = time.monotonic()
        lengths = [len(item["token_ids"]) for item in items]
        given = np.concatenate([np.asarray(item["token_ids"], np.float32) for item in items])
        with _exclusive_device(self._lock_path if self._shares > 1 else None):
            computes_since, cpu = time.monotonic(), time.process_time()
            found = (self._gpu_forward if self._on_gpu else self._cpu_forward)(given, content)
            took, used = time.monotonic() - computes_since, time.process_time() - cpu
        ends = np.cumsum(lengths)
        entries = [
            {"score": float(found[end - length : end].mean())} for end, length in zip(ends, lengths, strict=True)
        ]
        # A share of the device takes proportionally longer, independent of the load of the others.
        time.sleep(max(0.0, begun + self._shares * took - time.monotonic()))
        return ModelOutput(entries, len(items), sum(lengths), 0.0, used, self._shares * took)

    def _cpu_forward(self, given: Any, content: Any) -> Any:
        hidden = np.cos(np.outer(given, np.arange(1, self._width + 1, dtype=np.float32)))
        layers = np.frombuffer(content, np.float32).reshape(self._layers, self._width, self._width)
        for layer in layers:
            hidden = hidden @ layer
        return hidden[:, 0]

    def _gpu_forward(self, given: Any, content: Any) -> Any:
        import torch  # available only with a GPU

        tokens = torch.from_numpy(given).to(content.device)
        hidden = torch.cos(torch.outer(tokens, torch.arange(1, self._width + 1, device=content.device)))
        hidden = hidden.to(torch.bfloat16)
        layers = content.view(torch.bfloat16).view(self._layers, self._width, self._width)
        for layer in layers:
            # Without normalisation, rounding shrinks the numbers layer by layer until services are indistinguishable.
            hidden = torch.nn.functional.rms_norm(hidden @ layer, (self._width,))
        wait_for_gpu()
        return hidden[:, 0].float().cpu().numpy()


def _make_layer(seed: int, width: int, *, on_gpu: bool) -> bytes:
    """Return a matrix that is orthogonal up to rounding, so that numbers neither vanish nor overflow.

    It is a reflection: the identity minus twice the projection onto a random direction, with permuted rows.
    """
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(width).astype(np.float32)
    direction /= np.linalg.norm(direction)
    matrix = np.eye(width, dtype=np.float32)[rng.permutation(width)]
    matrix -= 2 * np.outer(matrix @ direction, direction)
    if not on_gpu:
        return matrix.tobytes()
    # bfloat16 is the upper half of a float32.
    return (matrix.view(np.uint32) >> 16).astype(np.uint16).tobytes()


@contextmanager
def _exclusive_device(path: Path | None) -> Iterator[None]:
    """Lock the device. Shares compute one after the other, because other load would distort a forward's time."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _DiskMapping(mmap.mmap):
    """The mapped bytes of a file whose page cache can be dropped."""

    descriptor: int

    def drop_cache(self) -> None:
        self.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _write_to_disk(path: Path, content: memoryview) -> memoryview:
    with path.open("w+b") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        mapped = _DiskMapping(file.fileno(), len(content))
        mapped.descriptor = os.dup(file.fileno())
    return memoryview(mapped)


class _DeviceWrapper:
    """A device that delegates the interface `arl_gpu.devices.interface.Device` to another device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class _SwapOutDevice(_DeviceWrapper):
    """A device that copies evicted weights into prepared registered memory, as the best engines do."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._host_buffers: dict[int, memoryview] = {}
        """Buffers for evicted weights by size."""

    def register(self, content: memoryview) -> None:
        self._device.register(content)
        if len(content) not in self._host_buffers:
            self._host_buffers[len(content)] = load_private(len(content), lambda: iter(()))
            self._device.register(self._host_buffers[len(content)])

    def free(self, block: DeviceBlock) -> None:
        kept, view = self._host_buffers[block.size], block.view()
        if self._device.kind == "cuda":
            import torch  # available only with a GPU

            torch.frombuffer(kept, dtype=torch.uint8).copy_(view, non_blocking=True)
            torch.cuda.synchronize()
        else:
            begun = time.monotonic()
            np.copyto(np.frombuffer(kept, np.uint8), np.frombuffer(view, np.uint8))
            # The simulated bus has the same bandwidth in both directions.
            time.sleep(max(0.0, block.size * BUS_SPEED["s_per_byte"] - (time.monotonic() - begun)))
        self._device.free(block)


class _ReloadDevice(_DeviceWrapper):
    """A device that reads weights from their file into plain memory before it copies them."""

    def register(self, content: memoryview) -> None:
        """Do nothing: this strategy stores nothing in host memory."""

    def unregister(self, content: memoryview) -> None:
        """Do nothing: nothing was registered."""

    def copy_async(self, block: DeviceBlock, content: memoryview) -> CopyEvent:
        assert isinstance(content.obj, _DiskMapping)
        content.obj.drop_cache()
        begun = time.monotonic()
        read = memoryview(bytearray(content))
        return _ReadThenCopyEvent(self._device.copy_async(block, read), time.monotonic() - begun)


class _ReadThenCopyEvent:
    """A copy that includes the time of the read before it."""

    def __init__(self, copied: CopyEvent, read_s: float) -> None:
        self._copied, self._read_s = copied, read_s

    def wait(self) -> None:
        self._copied.wait()

    @property
    def took_s(self) -> float:
        return self._read_s + self._copied.took_s


BUS_SPEED = {"s_per_byte": 0.0}


def _create_model(directory: Path, options: Mapping[str, Any]) -> RewardModel:
    return SyntheticModel(directory, options)


if __name__ == "__main__":
    config = SharedWorkerConfig(**json.loads(sys.argv[2]))
    if config.copy_mib_per_s:
        BUS_SPEED["s_per_byte"] = 1 / (config.copy_mib_per_s * MIB)
    loader.MODEL_FACTORIES = {**loader.MODEL_FACTORIES, "synthetic": _create_model}
    serve(socket.socket(fileno=int(sys.argv[1])), config)
