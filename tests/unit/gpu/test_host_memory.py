"""Weights that several workers share in host memory: ownership, sizes and release."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from arl_gpu.models.weight_buffer import CHUNK_BYTES, AllocateFn, Chunk, WeightBuffer, load_private, load_shared
from arl_gpu.worker.host_memory import HostMemory, memory_limit_bytes

BUDGET = 100_000
SIZES = {"a": 30_000, "b": 45_000, "c": 60_000, "d": 99_999, "e": 8_193, "f": 40_000, "too-large": 100_001}
GAP = 64
"""Bytes between two chunks."""


class Weights(WeightBuffer):
    """Weights of random bytes, in chunks of any size."""

    def __init__(self, seed: str, size: int) -> None:
        self.size, self.reads = size, 0
        self._bytes = random.Random(seed).randbytes(size)
        self.breaks_at: int | None = None

    def _chunks(self) -> Iterator[Chunk]:
        self.reads += 1
        at = 0
        for length in (1, 4096, CHUNK_BYTES, self.size):
            if self.breaks_at is not None and at >= self.breaks_at:
                raise OSError("the file can't be read")
            if piece := self._bytes[at : min(at + length, self.size - GAP)]:
                yield at, memoryview(piece)
            at += length + GAP

    def _release_source(self) -> None:
        pass

    @property
    def whole(self) -> bytes:
        return bytes(load_private(self.size, self._chunks))


def path_of(host: HostMemory, **about: int) -> str:
    """Return the path of an empty file for service `a`."""
    return host._get_file({"name": "a", **about}).path


def map_it_and_die(path: str, weights: Weights) -> None:
    """Map the weights in a child process that is then killed."""
    if not (child := os.fork()):
        held = kept_in(path, weights)
        os.kill(os.getpid(), signal.SIGKILL if held else signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def kept_in(path: str, weights: Weights) -> memoryview:
    return load_shared(path, weights.size, weights._chunks)


@pytest.fixture
def host() -> Iterator[HostMemory]:
    host = HostMemory(BUDGET)
    yield host
    host.close()


@pytest.mark.parametrize("hold", [load_private, None], ids=["own", "shared"])
def test_every_chunk_is_at_its_offset_with_zeros_between(host: HostMemory, hold: AllocateFn | None) -> None:
    weights = Weights("a", CHUNK_BYTES + 4097 + 17)
    content = weights.content if hold else kept_in(path_of(host), weights)
    found = bytearray(weights.size)
    for offset, piece in weights._chunks():
        found[offset : offset + len(piece)] = piece
    assert content == found


def test_equal_weights_are_shared_and_different_weights_are_separate(host: HostMemory) -> None:
    path = path_of(host)
    first, second = kept_in(path, Weights("a", CHUNK_BYTES + 17)), kept_in(path, Weights("a", CHUNK_BYTES + 17))
    first[0] ^= 255
    assert second[0] == first[0]
    second[0] ^= 255
    other = Weights("another model, as long", CHUNK_BYTES + 17)
    assert kept_in(path, other) == other.whole
    assert second == Weights("a", CHUNK_BYTES + 17).whole
    changed = Weights("changed", 1000)
    assert kept_in(path_of(host, changed=1), changed) == changed.whole
    assert second == Weights("a", CHUNK_BYTES + 17).whole


@pytest.mark.parametrize("size", [1000, 9000])
def test_weights_of_another_worker_are_never_overwritten(host: HostMemory, size: int) -> None:
    path, before = path_of(host), Weights("a", 5000)
    theirs = kept_in(path, before)
    replaced = Weights("the files were replaced meanwhile", size)
    assert kept_in(path, replaced) == replaced.whole
    assert theirs == before.whole


def test_unfinished_file_of_dead_worker_is_rewritten(host: HostMemory) -> None:
    path = path_of(host)
    for left in (b"half", b"of a larger model that was here" * 1000):
        Path(path).write_bytes(left)
        assert kept_in(path, weights := Weights("a", 5000)) == weights.whole


def test_failed_read_leaves_no_usable_file(host: HostMemory) -> None:
    path, broken = path_of(host), Weights("a", 5000)
    broken.breaks_at = 1
    with pytest.raises(OSError, match="can't be read"):
        kept_in(path, broken)
    assert kept_in(path, weights := Weights("a", 5000)) == weights.whole


class Worker:
    """A fake worker that implements `arl_gpu.worker.host_memory.HostWeightHolder`."""

    def __init__(self, host: HostMemory) -> None:
        self.host = host
        self.mapped: dict[str, memoryview] = {}
        self.on_device: set[str] = set()
        self.pinned: set[str] = set()
        self.in_use: set[str] = set()
        host.add_holder(self)

    def has(self, service: str) -> bool:
        return service in self.mapped

    def has_on_device(self, service: str) -> bool:
        return service in self.on_device

    def is_pinned(self, service: str) -> bool:
        return service in self.pinned

    async def unload(self, service: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        if service not in self.in_use:
            self.on_device.discard(service)
            self.mapped.pop(service, None)
        return {"states": sorted(self.mapped)}

    async def load(self, name: str, *, breaks: bool = False) -> bool:
        """Load a service and return whether there was room."""
        weights = Weights(name, SIZES[name])
        weights.breaks_at = 1 if breaks else None
        async with self.host.reserve(({"name": name}, SIZES[name])) as paths:
            if paths is not None:
                await asyncio.sleep(0)
                self.mapped[name] = kept_in(paths[0], weights)
                self.host.record_use(name)
        return paths is not None


async def test_unused_weights_on_no_device_are_unloaded_first(host: HostMemory) -> None:
    one, other = Worker(host), Worker(host)
    heard: list[Any] = []
    host.set_response_handler(lambda number, said: heard.append((number, said["states"])))
    for name in ("a", "b", "e"):
        assert await one.load(name)
    for _ in range(3):
        host.record_use("b")
    assert await other.load("a")
    assert (host.reserved_bytes, host.written_bytes) == (83_193, 83_193), "weights of both workers must exist once"
    assert not await other.load("too-large")
    assert (one.mapped.keys(), other.mapped.keys()) == ({"a", "b", "e"}, {"a"})
    one.on_device.update("ae")
    other.pinned.add("c")
    assert await other.load("c")
    assert (one.mapped.keys(), other.mapped.keys()) == ({"a", "e"}, {"a", "c"}), "b was used often but is on no device"
    assert heard == [(0, ["a", "e"])]
    one.on_device.clear()
    assert await one.load("f")
    assert (one.mapped.keys(), other.mapped.keys()) == ({"f"}, {"c"})
    assert (host.reserved_bytes, host.written_bytes) == (100_000, 100_000)


async def test_pinned_or_used_weights_stay_and_load_is_refused(host: HostMemory) -> None:
    one, other = Worker(host), Worker(host)
    assert await one.load("a")
    assert await one.load("b")
    one.pinned.add("a")
    one.in_use.add("b")
    assert not await other.load("c")
    assert not await other.load("c")
    assert one.mapped["b"] == Weights("b", SIZES["b"]).whole
    one.in_use.clear()
    assert await other.load("c")
    assert (one.mapped.keys(), host.reserved_bytes) == ({"a"}, 90_000)


async def test_concurrent_loads_above_memory_budget_wait(host: HostMemory) -> None:
    one, other = Worker(host), Worker(host)
    assert await asyncio.gather(one.load("c"), other.load("b"), other.load("f")) == [True, True, True]
    assert len({*one.mapped, *other.mapped} & {"c", "b", "f"}) == 2
    assert host.written_bytes == host.reserved_bytes <= BUDGET


async def test_weights_loaded_twice_at_once_are_written_once(host: HostMemory) -> None:
    one, other = Worker(host), Worker(host)
    assert await asyncio.gather(one.load("d"), other.load("d")) == [True, True]
    one.mapped["d"][0] ^= 255
    assert one.mapped["d"] == other.mapped["d"]


async def test_parts_reserve_host_memory_all_at_once_or_wait(host: HostMemory) -> None:
    Worker(host)

    async def read_both_parts(name: str) -> None:
        specs = [{"name": name, "options": {"tensor_parallel": 2, "rank": rank}} for rank in (0, 1)]
        async with host.reserve(*((spec, 40_000) for spec in specs)) as paths:
            assert paths is not None
            await asyncio.sleep(0)
            assert host.reserved_bytes == 80_000

    await asyncio.gather(*map(read_both_parts, "abcd"))
    assert host.reserved_bytes == 0


async def test_replaced_weights_count_while_a_worker_maps_them(host: HostMemory) -> None:
    one, new = Worker(host), {"name": "c", "registered_at": 2.0}
    assert await one.load("c")
    async with host.reserve((new, SIZES["c"])) as paths:
        assert paths is None
    async with host.reserve((new, 30_000)) as paths:
        assert paths is not None
        before, content = Weights("c", SIZES["c"]).whole, kept_in(paths[0], weights := Weights("new", 30_000))
        assert (one.mapped["c"], content) == (before, weights.whole)
    assert host.reserved_bytes == 90_000
    one.mapped.clear()
    async with host.reserve((new, SIZES["c"])) as paths:
        assert paths is not None, "no worker maps the old weights any more"


async def test_reservation_of_failed_load_is_released(host: HostMemory) -> None:
    one, other = Worker(host), Worker(host)
    with pytest.raises(OSError, match="can't be read"):
        await one.load("d", breaks=True)
    assert (host.reserved_bytes, host.written_bytes) == (0, 0)
    assert await other.load("d")


async def test_weights_mapped_by_killed_process_are_released(host: HostMemory) -> None:
    async with host.reserve(({"name": "a"}, SIZES["a"])) as paths:
        assert paths is not None
        map_it_and_die(paths[0], Weights("a", SIZES["a"]))
        assert host.written_bytes == SIZES["a"]
    assert (host.reserved_bytes, host.written_bytes) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_random_loads_stay_within_budget_and_keep_mapped_weights(seed: int) -> None:
    rng, host = random.Random(seed), HostMemory(BUDGET)
    workers = [Worker(host) for _ in range(3)]

    async def read_some(worker: Worker) -> None:
        for _ in range(40):
            name = rng.choice(sorted(SIZES))
            for kept, share in ((worker.on_device, 0.3), (worker.pinned, 0.05), (worker.in_use, 0.1)):
                kept.intersection_update(worker.mapped)
                kept.update(each for each in worker.mapped if rng.random() < share)
                kept.difference_update([each for each in kept if rng.random() < 0.5])
            with suppress(OSError):
                await worker.load(name, breaks=rng.random() < 0.1)
            assert host.written_bytes <= host.reserved_bytes <= BUDGET
            if rng.random() < 0.1:
                worker.mapped.clear()  # it died
            for each in workers:
                assert all(content == Weights(name, SIZES[name]).whole for name, content in each.mapped.items())

    await asyncio.gather(*map(read_some, workers))
    for worker in workers:
        worker.mapped.clear()
    await host.release_unmapped()
    assert (host.reserved_bytes, host.written_bytes) == (0, 0)
    host.close()


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        ("0::/", {"memory.max": "7"}),
        ("0::/job/step", {"job/step/memory.max": "7", "job/memory.max": "max"}),
        ("0::/job/step", {"job/step/memory.max": "9", "job/memory.max": "7"}),
        ("4:cpu,cpuacct:/x\n9:memory:/slurm/job", {"memory/slurm/job/memory.limit_in_bytes": "7"}),
        ("0::/of/the/host", {"memory.max": "7"}),
        ("0::/../../elsewhere", {"memory.max": "7", "elsewhere/memory.max": "5"}),
    ],
)
def test_memory_limit_is_lowest_of_enclosing_control_groups(tmp_path: Path, own: str, limits: dict[str, str]) -> None:
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(limit + "\n")
    (tmp_path / "self").write_text(own + "\n")
    assert memory_limit_bytes(tmp_path, tmp_path / "self") == 7
    assert memory_limit_bytes(tmp_path / "none", tmp_path / "none") > 1 << 20
