"""Services come onto a device whole or not at all, and leave it only when nobody uses them."""

import random
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from arl_core.residency import Busy, Occupancy, Residence, WrongState
from arl_gpu.cpu_device import CpuDevice
from arl_gpu.device import Block, CopyFailed, DeviceFull
from arl_gpu.residency import NoRoom, NotFreed, Residency

CAPACITY = 100_000
SIZES = {"a": 30_000, "b": 45_000, "c": 60_000, "d": 99_999, "e": 8_193, "too-large": 100_001}


@dataclass(frozen=True)
class Bytes:
    content: memoryview


def weights_of(name: str) -> Bytes:
    return Bytes(memoryview(random.Random(name).randbytes(SIZES[name])))


class Faults:
    """The next `alloc` or `copy` fails where it is armed."""

    def __init__(self) -> None:
        self.armed: set[str] = set()

    def __call__(self, what: str, size: int) -> bool:
        armed = what in self.armed
        self.armed.discard(what)
        return armed


class Machine(RuleBasedStateMachine):
    """Any order of uses, ends of uses, evictions and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()
        self.device = CpuDevice(CAPACITY, fault=self.faults)
        self.residency = Residency(self.device)
        self.uses: list[tuple[str, ExitStack, memoryview]] = []
        for name in SIZES:
            self.residency.load(name, weights_of(name))

    @rule(name=st.sampled_from(sorted(SIZES)), fault=st.sampled_from([None, "alloc", "copy"]))
    def use(self, name: str, fault: str | None) -> None:
        self.faults.armed = {fault} if fault else set()
        was = self.residency.states[name]
        busy = {each for each, _, _ in self.uses}
        with ExitStack() as stack:
            try:
                content = stack.enter_context(self.residency.using(name))
            except (NoRoom, CopyFailed):
                assert was is not Residence.RESIDENT
                assert fault or busy or SIZES[name] > CAPACITY
                assert self.residency.states[name] is Residence.HOST
            else:
                self.uses.append((name, stack.pop_all(), content))
        assert all(self.residency.states[each] is Residence.RESIDENT for each in busy)

    @rule(data=st.data())
    def end_a_use(self, data: st.DataObject) -> None:
        if self.uses:
            _, stack, _ = self.uses.pop(data.draw(st.integers(0, len(self.uses) - 1)))
            stack.close()

    @rule(name=st.sampled_from(sorted(SIZES)))
    def evict(self, name: str) -> None:
        busy = any(each == name for each, _, _ in self.uses)
        with suppress(WrongState):
            if busy:
                with pytest.raises(Busy):
                    self.residency.evict(name)
            else:
                self.residency.evict(name)

    @invariant()
    def bytes_are_exact(self) -> None:
        resident = [name for name, state in self.residency.states.items() if state is Residence.RESIDENT]
        assert set(self.residency.states.values()) <= {Residence.HOST, Residence.RESIDENT}
        assert self.device.used == self.residency.used == sum(SIZES[name] for name in resident) <= CAPACITY

    @invariant()
    def what_is_used_is_there_whole(self) -> None:
        for name, _, content in self.uses:
            assert content == weights_of(name).content

    def teardown(self) -> None:
        self.device.close()


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_the_least_recently_used_leaves_first_and_only_as_much_as_is_needed() -> None:
    occupancy = Occupancy(100)
    for name in ("a", "b", "c"):
        occupancy = occupancy.loaded(name, 30).restoring(name).restored(name)
    occupancy = occupancy.taken("a").released("a").loaded("d", 60)
    assert occupancy.evictions_for("d") == ("b", "c")
    assert occupancy.taken("b").evictions_for("d") == ("c", "a")
    assert occupancy.taken("a").taken("b").evictions_for("d") is None


def test_a_device_that_does_not_give_back_what_was_freed_is_noticed() -> None:
    class Leaking(CpuDevice):
        def free(self, block: Block) -> None:
            pass

    residency = Residency(Leaking(CAPACITY))
    residency.load("a", weights_of("a"))
    with residency.using("a"):
        pass
    with pytest.raises(NotFreed):
        residency.evict("a")


class TestCpuDevice:
    def test_a_freed_gap_is_used_again_and_a_narrower_one_is_not(self) -> None:
        device = CpuDevice(30_000)
        first, _, third = device.alloc(10_000), device.alloc(10_000), device.alloc(10_000)
        device.free(first)
        device.free(third)
        assert (device.used, device.alloc(10_000).size, device.used) == (10_000, 10_000, 20_000)
        with pytest.raises(DeviceFull):
            device.alloc(10_001)

    def test_the_pages_of_what_was_freed_go_back_to_the_system(self) -> None:
        device = CpuDevice(30_000)
        block = device.alloc(30_000)
        device.copy_async(block, memoryview(b"x" * 30_000)).wait()
        device.free(block)
        assert bytes(device.alloc(30_000).view()) == bytes(30_000)
        device.close()

    def test_a_block_is_freed_once(self) -> None:
        device = CpuDevice(10)
        block = device.alloc(10)
        device.free(block)
        with pytest.raises(ValueError, match="freed before"):
            device.free(block)
        assert device.used == 0

    def test_a_copy_that_breaks_off_says_so_and_the_block_stays_taken(self) -> None:
        device = CpuDevice(10, fault=lambda what, _size: what == "copy")
        block = device.alloc(10)
        with pytest.raises(CopyFailed):
            device.copy_async(block, memoryview(b"0123456789")).wait()
        assert device.used == 10
        device.close()

    def test_a_throttled_copy_takes_as_long_as_its_bandwidth_says(self) -> None:
        device = CpuDevice(100_000, bytes_per_s=1_000_000)
        residency = Residency(device)
        residency.load("a", weights_of("a"))
        with residency.using("a"):
            [took_s] = residency.moves().restored_s
            assert took_s >= 0.03
        device.close()
