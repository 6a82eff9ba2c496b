"""Services are loaded onto a device whole or not at all, and are evicted only while unused."""

import random
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from arl_core.residency.eviction import EvictionCandidate, EvictionPolicy, select_victims
from arl_core.residency.occupancy import DeviceOccupancy, ResidencyState, ServiceBusyError
from arl_gpu.devices.cpu_device import CpuDevice
from arl_gpu.devices.interface import CopyFailed, DeviceBlock, DeviceFull
from arl_gpu.worker.residency import DeviceResidency, InsufficientMemory, MemoryNotFreed

CAPACITY = 100_000
HOST_BYTES = 280_000
SIZES = {"a": 30_000, "b": 45_000, "c": 60_000, "d": 99_999, "e": 8_193, "too-large": 100_001}


NAMES = st.sampled_from(sorted(SIZES))
WAITING = st.lists(NAMES, max_size=3, unique=True)


@dataclass
class Bytes:
    content: memoryview


def weights_of(name: str) -> Bytes:
    return Bytes(memoryview(random.Random(name).randbytes(SIZES[name])))


class Faults:
    """Injected faults: the next armed `alloc` or `copy` fails."""

    def __init__(self) -> None:
        self.armed: set[str] = set()

    def __call__(self, what: str, size: int) -> bool:
        armed = what in self.armed
        self.armed.discard(what)
        return armed


class ResidencyMachine(RuleBasedStateMachine):
    """State machine: any order of uses, prefetches, evictions, pins, new services and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()
        self.device = CpuDevice(CAPACITY, bytes_per_s=200e6, fault=self.faults)
        self.residency = DeviceResidency(self.device, host_bytes=HOST_BYTES)
        self.uses: list[tuple[str, ExitStack, memoryview]] = []
        self.pinned: set[str] = set()

    @property
    def busy(self) -> set[str]:
        return {each for each, _, _ in self.uses}

    def state(self, name: str) -> ResidencyState:
        return self.residency.states.get(name, ResidencyState.COLD)

    def resident(self, names: set[str]) -> set[str]:
        return {name for name in names if self.state(name) is ResidencyState.RESIDENT}

    @rule(name=NAMES, waiting=WAITING, fault=st.sampled_from([None, "alloc", "copy"]))
    def use(self, name: str, waiting: list[str], fault: str | None) -> None:
        kept = self.resident(self.pinned - {name}) | self.busy
        try:
            with ExitStack() as stack:
                if self.state(name) is ResidencyState.COLD:
                    self.residency.load(name, weights_of(name))
                self.faults.armed = {fault} if fault else set()
                content = stack.enter_context(self.residency.use(name, waiting=waiting))
                self.uses.append((name, stack.pop_all(), content))
        except (InsufficientMemory, CopyFailed):
            assert self.state(name) in (ResidencyState.COLD, ResidencyState.HOST)
            assert fault or kept or self.pinned or SIZES[name] > CAPACITY
        assert self.resident(kept) == kept

    @rule(waiting=WAITING, fault=st.sampled_from([None, "alloc", "copy"]))
    def prefetch(self, waiting: list[str], fault: str | None) -> None:
        kept = self.resident(self.pinned | set(waiting)) | self.busy
        self.faults.armed = {fault} if fault else set()
        begun = self.residency.prefetch(waiting)
        assert begun is None or begun in waiting
        assert self.resident(kept) == kept

    @rule(at=st.integers(0, 63))
    def end_use(self, at: int) -> None:
        """End one use. The drawn number must not depend on how many uses exist, because that depends on copy times."""
        if self.uses:
            _, stack, _ = self.uses.pop(at % len(self.uses))
            stack.close()

    @rule(name=NAMES)
    def evict(self, name: str) -> None:
        if name in self.busy:
            with pytest.raises(ServiceBusyError):
                self.residency.evict_if_present(name)
        else:
            self.residency.evict_if_present(name)
            assert self.state(name) in (ResidencyState.COLD, ResidencyState.HOST)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        if name not in self.busy:
            self.residency.forget(name)
            self.pinned.discard(name)
            assert name not in self.residency.states

    @rule(name=NAMES, on=st.booleans())
    def pin(self, name: str, on: bool) -> None:
        self.residency.pin(name, on=on)
        self.pinned = self.pinned | {name} if on else self.pinned - {name}

    @invariant()
    def used_bytes_are_exact(self) -> None:
        there = {name: state for name, state in self.residency.states.items() if state is not ResidencyState.COLD}
        on_device = [name for name, state in there.items() if state is not ResidencyState.HOST]
        assert self.device.used == self.residency.used == sum(SIZES[name] for name in on_device) <= CAPACITY
        assert sum(SIZES[name] for name in there) <= HOST_BYTES

    @invariant()
    def used_weights_are_complete(self) -> None:
        for name, _, content in self.uses:
            assert content == weights_of(name).content

    def teardown(self) -> None:
        for _, stack, _ in self.uses:
            stack.close()
        self.residency.close()
        assert self.device.used == 0


TestAnyOrder = ResidencyMachine.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@pytest.mark.slow
class TestManyRandomOrders(ResidencyMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=400, stateful_step_count=60, deadline=None)


class TestEvictionOrder:
    """Three services of 30 fill 90 of 100; `a` was used most, `b` least, `c` last."""

    @pytest.fixture
    def occupancy(self) -> DeviceOccupancy:
        occupancy = DeviceOccupancy(100)
        for name in ("a", "b", "c"):
            occupancy = occupancy.loaded(name, 30, load_s=2.0).restoring(name).restored(name, restore_s=1.0)
        for name in ("a", "a", "a", "b", "c", "c"):
            occupancy = occupancy.acquired(name, now=1.0).released(name)
        return occupancy.loaded("d", 60).loaded("e", 30)

    def test_least_used_services_are_evicted_only_as_needed(self, occupancy: DeviceOccupancy) -> None:
        assert occupancy.evictions_for("e", now=2.0) == ("b",)
        assert occupancy.evictions_for("d", now=2.0) == ("b", "c")
        assert occupancy.evictions_for("d", now=2.0, policy=EvictionPolicy.LRU) == ("a", "b")

    def test_services_of_queued_work_are_evicted_last(self, occupancy: DeviceOccupancy) -> None:
        assert occupancy.evictions_for("e", now=2.0, queued=("b", "c")) == ("a",)
        assert occupancy.evictions_for("d", now=2.0, queued=("b", "c")) == ("a", "c")

    def test_busy_or_pinned_services_are_never_evicted(self, occupancy: DeviceOccupancy) -> None:
        assert occupancy.acquired("b", now=2.0).with_pinned("c", is_pinned=True).evictions_for("e", now=2.0) == ("a",)
        assert occupancy.acquired("b").with_pinned("c", is_pinned=True).acquired("a").evictions_for("e") is None

    def test_retained_service_is_not_chosen_for_eviction(self, occupancy: DeviceOccupancy) -> None:
        staying = occupancy.with_retained("a", is_retained=True).acquired("b", now=2.0).with_pinned("c", is_pinned=True)
        assert staying.evictions_for("e", now=2.0) is None
        assert staying.with_retained("a", is_retained=False).evictions_for("e", now=2.0) == ("a",)

    def test_engine_needs_no_host_memory(self, occupancy: DeviceOccupancy) -> None:
        held = occupancy.loaded("engine", 1000, host_size=0)
        assert (held.host_bytes, held.host_evictions(120, excluded="e")) == (180, ("d",))

    def test_prefetch_takes_next_queued_service_and_evicts_no_queued_service(self, occupancy: DeviceOccupancy) -> None:
        assert occupancy.next_prefetch(["a", "e", "d"], now=2.0) == ("e", ("b",))
        assert occupancy.next_prefetch(["a", "b", "c", "e"], now=2.0) is None
        assert occupancy.next_prefetch(["e"], policy=EvictionPolicy.LRU) is None

    def test_host_memory_evicts_services_off_the_device_first(self, occupancy: DeviceOccupancy) -> None:
        assert occupancy.host_bytes == 180
        assert occupancy.host_evictions(180, excluded="e") == ()
        assert occupancy.host_evictions(120, excluded="e") == ("d",)
        assert occupancy.host_evictions(90, excluded="e", now=2.0) == ("d", "b")
        assert occupancy.acquired("a").acquired("b").acquired("c").host_evictions(90, excluded="e") is None


class TestSelectVictims:
    @given(st.lists(st.integers(1, 50), max_size=8), st.integers(-10, 200))
    def test_victims_free_enough_memory_and_none_is_unnecessary(self, sizes: list[int], missing: int) -> None:
        offered = [
            EvictionCandidate(name=str(at), size=size, restore_s=1.0, rate=0.0, used_at=at, restored_at=at)
            for at, size in enumerate(sizes)
        ]
        found = select_victims(offered, missing_bytes=missing)
        if found is None:
            assert sum(sizes) < missing
            return
        freed = [sizes[int(name)] for name in found]
        assert sum(freed) >= missing
        assert all(sum(freed) - each < missing for each in freed)


def test_device_that_does_not_free_memory_is_detected() -> None:
    class Leaking(CpuDevice):
        def free(self, block: DeviceBlock) -> None:
            pass

    residency = DeviceResidency(Leaking(CAPACITY))
    residency.load("a", weights_of("a"))
    with residency.use("a"):
        pass
    with pytest.raises(MemoryNotFreed):
        residency.evict("a")


class TestCpuDevice:
    def test_freed_gap_is_reused_only_for_blocks_that_fit(self) -> None:
        device = CpuDevice(30_000)
        first, _, third = device.alloc(10_000), device.alloc(10_000), device.alloc(10_000)
        device.free(first)
        device.free(third)
        assert (device.used, device.alloc(10_000).size, device.used) == (10_000, 10_000, 20_000)
        with pytest.raises(DeviceFull):
            device.alloc(10_001)

    def test_freed_pages_are_returned_to_the_system(self) -> None:
        device = CpuDevice(30_000)
        block = device.alloc(30_000)
        device.copy_async(block, memoryview(b"x" * 30_000)).wait()
        device.free(block)
        assert bytes(device.alloc(30_000).view()) == bytes(30_000)
        device.close()

    def test_external_reservation_counts_without_an_address(self) -> None:
        device = CpuDevice(1 << 40)
        lent = device.reserve_external((1 << 40) - 8)
        assert (device.used, lent.view()) == ((1 << 40) - 8, None)
        with pytest.raises(DeviceFull):
            device.reserve_external(9)
        block = device.alloc(8)
        device.free(lent)
        assert device.used == 8
        with pytest.raises(ValueError, match="released before"):
            device.free(lent)
        device.free(block)

    def test_block_cannot_be_freed_twice(self) -> None:
        device = CpuDevice(10)
        block = device.alloc(10)
        device.free(block)
        with pytest.raises(ValueError, match="freed before"):
            device.free(block)
        assert device.used == 0

    def test_failed_copy_raises_and_keeps_its_block(self) -> None:
        device = CpuDevice(10, fault=lambda what, _size: what == "copy")
        block = device.alloc(10)
        with pytest.raises(CopyFailed):
            device.copy_async(block, memoryview(b"0123456789")).wait()
        assert device.used == 10
        device.close()

    def test_throttled_copy_takes_time_of_its_bandwidth(self) -> None:
        device = CpuDevice(100_000, bytes_per_s=1_000_000)
        residency = DeviceResidency(device)
        residency.load("a", weights_of("a"))
        with residency.use("a"):
            [took_s] = residency.take_stats().restored_s
            assert took_s >= 0.03
        device.close()


class TestServiceUse:
    def test_prefetch_during_use_keeps_the_used_service(self) -> None:
        residency = DeviceResidency(CpuDevice(SIZES["a"] + SIZES["b"]))
        for name in "abe":
            residency.load(name, weights_of(name))
        with residency.use("b"):
            pass
        with residency.use("a") as content:
            assert residency.prefetch(["e"]) == "e"
            assert content == weights_of("a").content
            with pytest.raises(ServiceBusyError):
                residency.evict("a")
        assert residency.states["b"] is ResidencyState.HOST
        residency.evict("a")
        residency.close()

    def test_used_service_outlives_prefetched_unused_service(self) -> None:
        residency = DeviceResidency(CpuDevice(SIZES["a"] + SIZES["b"]))
        for name in ("a", "b", "e", "too-large"):
            residency.load(name, weights_of(name))
        with residency.use("a"):
            pass
        assert residency.prefetch(["e"]) == "e"
        with pytest.raises(InsufficientMemory), residency.use("too-large"):  # which waits for what is on its way
            pass
        with residency.use("b"):
            assert residency.states["e"] is ResidencyState.HOST, "e was prefetched last and never used"
            assert residency.states["a"] is ResidencyState.RESIDENT
        residency.close()

    def test_failed_copy_leaves_nothing_on_the_device(self) -> None:
        device = CpuDevice(CAPACITY, fault=lambda what, _size: what == "copy")
        residency = DeviceResidency(device)
        residency.load("a", weights_of("a"))
        with pytest.raises(CopyFailed), residency.use("a"):
            pass
        assert (residency.states["a"], device.used, residency.used) == (ResidencyState.HOST, 0, 0)
        residency.close()
