"""The residency on a GPU. Skipped where there is none."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from arl_core.residency.eviction import EvictionPolicy
from arl_core.residency.occupancy import ResidencyState
from arl_gpu.devices.interface import DeviceFull
from arl_gpu.models.weight_buffer import load_private, load_shared
from arl_gpu.worker.residency import DeviceResidency, InsufficientMemory

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

MIB = 1 << 20
CAPACITY = 700 * MIB


@dataclass
class Bytes:
    content: memoryview


@pytest.fixture
def device() -> Iterator[Any]:
    from arl_gpu.devices.cuda_device import CudaDevice  # torch comes with it

    device = CudaDevice(0, capacity=CAPACITY)
    yield device
    device.close()


def weights(size: int, seed: int) -> Bytes:
    return Bytes(memoryview(bytearray(np.random.default_rng(seed).bytes(size))))


def test_bytes_arrive_as_they_are_and_leave_without_a_copy_back(device: Any) -> None:
    residency = DeviceResidency(device, eviction=EvictionPolicy.LRU)
    kept = {name: weights(300 * MIB + at, seed=at) for at, name in enumerate(("a", "b", "c"))}
    for name, each in kept.items():
        residency.load(name, each)
    for name in ("a", "b", "c", "a"):
        with residency.use(name) as content:
            assert bytes(content.cpu().numpy()) == kept[name].content
        assert device.used == residency.used <= CAPACITY
    assert residency.states["b"] is ResidencyState.HOST
    residency.close()
    assert device.used == 0


def test_a_copy_ahead_disturbs_no_forward(device: Any) -> None:
    residency = DeviceResidency(device)
    first, second = weights(300 * MIB, seed=1), weights(300 * MIB, seed=2)
    residency.load("a", first)
    residency.load("b", second)
    with residency.use("a") as content:
        total = content.to(torch.int64).sum()
        assert residency.prefetch(["b"]) == "b"
        assert int(total) == int(content.to(torch.int64).sum())
    with residency.use("b") as content:
        assert bytes(content[:MIB].cpu().numpy()) == second.content[:MIB]
    residency.close()


def test_memory_that_can_not_be_pinned_is_copied_all_the_same_and_no_forward_hears_of_it(device: Any) -> None:
    kept = weights(64 * MIB, seed=4)
    device.register(kept.content)
    device.register(kept.content)  # a second time is an error
    block = device.alloc(64 * MIB)
    device.copy_async(block, kept.content).wait()
    assert int(block.view().to(torch.int64).sum()) == int(np.frombuffer(kept.content, np.uint8).sum(dtype=np.int64))
    device.free(block)
    device.unregister(kept.content)


def test_what_does_not_fit_takes_nothing(device: Any) -> None:
    residency = DeviceResidency(device)
    residency.load("large", Bytes(memoryview(bytearray(CAPACITY + 1))))
    with pytest.raises(InsufficientMemory), residency.use("large"):
        pass
    assert device.used == residency.used == 0
    with pytest.raises(DeviceFull):
        device.alloc(CAPACITY + 1)
    residency.close()


def test_cuda_device_registers_shared_and_private_memory_pinned(device: Any) -> None:
    wanted = weights(64 * MIB, seed=6).content
    file = os.memfd_create("weights", os.MFD_CLOEXEC)
    shared = load_shared(f"/proc/self/fd/{file}", len(wanted), lambda: iter([(0, wanted)]))
    os.close(file)
    private = load_private(len(wanted), lambda: iter([(0, wanted)]))
    for content in (shared, private):
        device.register(content)
        source = torch.frombuffer(content, dtype=torch.uint8)
        assert source.is_pinned()
        block = device.alloc(len(content))
        device.copy_async(block, content).wait()
        assert torch.equal(block.view().cpu(), source)
        device.free(block)
        device.unregister(content)
        assert not source.is_pinned()


def test_memory_that_was_reserved_and_pinned_is_given_back() -> None:
    from arl_gpu.devices.cuda_device import CudaDevice  # torch comes with it

    before, _ = torch.cuda.mem_get_info(0)
    device = CudaDevice(0, capacity=CAPACITY)
    content = weights(64 * MIB, seed=1).content
    for _ in range(2):
        device.register(content)
        device.unregister(content)
    device.close()
    after, _ = torch.cuda.mem_get_info(0)
    assert before - after < CAPACITY


def test_what_leaves_a_device_that_is_shared_is_there_for_an_engine() -> None:
    """An engine is another process: what torch keeps for itself is not there for it."""
    from arl_gpu.devices.cuda_device import CudaDevice  # torch comes with it

    device = CudaDevice(0, capacity=CAPACITY, shared=True)
    free, _ = torch.cuda.mem_get_info(0)
    content = weights(300 * MIB, seed=1).content
    block = device.alloc(len(content))
    device.copy_async(block, content).wait()
    assert bytes(block.view().cpu().numpy()) == content
    assert free - torch.cuda.mem_get_info(0)[0] >= 300 * MIB
    lent = device.reserve_external(400 * MIB)
    with pytest.raises(DeviceFull):
        device.reserve_external(1)
    device.free(block)
    assert free - torch.cuda.mem_get_info(0)[0] < 64 * MIB
    assert device.used == 400 * MIB
    device.free(lent)
    device.close()


def test_shared_cuda_device_alloc_after_forward_uses_own_segment() -> None:
    """Torch returns a cached segment to the driver only once nothing is in it."""
    from arl_gpu.devices.cuda_device import CudaDevice  # torch comes with it

    device = CudaDevice(0, capacity=CAPACITY, shared=True)
    free, _ = torch.cuda.mem_get_info(0)
    result_of_forward = torch.empty(2 * CAPACITY, dtype=torch.uint8, device="cuda:0")
    del result_of_forward
    block = device.alloc(300 * MIB)
    lent = device.reserve_external(400 * MIB)
    assert free - torch.cuda.mem_get_info(0)[0] < 364 * MIB
    device.free(block)
    device.free(lent)
    device.close()
