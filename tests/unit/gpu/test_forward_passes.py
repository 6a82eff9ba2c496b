"""The number of texts that a model computes in one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_gpu.models.forward_passes import GPU_TOKENS, ForwardPasses

MIB = 1 << 20
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@dataclass
class OnGpu:
    is_cuda: bool = True


class Memory:
    """Memory with room for up to `room` padded tokens per pass."""

    def __init__(self, lengths: Sequence[int], room: int) -> None:
        self.lengths, self.room = lengths, room
        self.passes: list[int] = []
        self.failures = 0

    def compute(self, group: Sequence[int]) -> list[int]:
        tokens = len(group) * max(self.lengths[at] for at in group)
        if tokens > self.room:
            self.failures += 1
            raise MemoryError
        self.passes.append(tokens)
        return [at * 10 for at in group]


@given(LENGTHS, st.integers(1, 400))
def test_each_text_is_computed_once_or_reported_too_large(lengths: list[int], room: int) -> None:
    passes, memory = ForwardPasses(cpu_tokens=400, parameters=MIB), Memory(lengths, room)
    groups = passes.group_texts(lengths, b"")
    found = passes.compute_groups(groups, lengths, memory.compute, on_too_large=lambda at: -1)
    assert found == {at: at * 10 if length <= room else -1 for at, length in enumerate(lengths)}
    assert max(memory.passes, default=0) <= room


def test_pass_size_without_memory_is_not_tried_again() -> None:
    lengths = [10] * 64
    passes, memory = ForwardPasses(cpu_tokens=640, parameters=MIB), Memory(lengths, 100)
    passes.compute_groups(passes.group_texts(lengths, b""), lengths, memory.compute)
    assert (memory.passes, memory.failures) == ([80] * 8, 3)
    memory.failures = 0
    groups = passes.group_texts(lengths, b"")
    passes.compute_groups(groups, lengths, memory.compute)
    assert (max(map(len, groups)), memory.failures) == (8, 0)


def test_passes_grow_again_after_memory_sufficed_for_a_while() -> None:
    lengths = [10] * 64
    passes, memory = ForwardPasses(cpu_tokens=640, parameters=MIB), Memory(lengths, 100)
    passes.compute_groups(passes.group_texts(lengths, b""), lengths, memory.compute)
    memory.room = 640
    for _ in range(20):
        passes.compute_groups(passes.group_texts(lengths, b""), lengths, memory.compute)
    assert (memory.passes[-1], memory.failures) == (640, 3)


def test_too_large_text_fails_its_batch_without_handler() -> None:
    passes, memory = ForwardPasses(cpu_tokens=400, parameters=MIB), Memory([5, 50], 20)
    with pytest.raises(MemoryError):
        passes.compute_groups([[0, 1]], [5, 50], memory.compute)


def test_later_memory_shortage_is_not_blamed_on_text() -> None:
    passes, memory = ForwardPasses(cpu_tokens=400, parameters=MIB), Memory([5, 50], 60)
    passes.compute_groups([[0], [1]], [5, 50], memory.compute)
    memory.room = 0
    with pytest.raises(MemoryError):
        passes.compute_groups([[1]], [5, 50], memory.compute, on_too_large=lambda at: -1)


def test_sharded_model_never_splits_its_passes() -> None:
    passes, memory = ForwardPasses(cpu_tokens=400, parameters=MIB, is_sharded=True), Memory([10] * 4, 20)
    with pytest.raises(MemoryError):
        passes.compute_groups([[0, 1, 2, 3]], [10] * 4, memory.compute, on_too_large=lambda at: -1)
    assert passes.group_texts([10] * 4, b"") == [[0, 1, 2, 3]]


def test_other_errors_are_not_treated_as_memory_shortage() -> None:
    def fails(group: Sequence[int]) -> list[int]:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        ForwardPasses(cpu_tokens=400, parameters=MIB).compute_groups(
            [[0, 1]], [1, 1], fails, on_too_large=lambda at: -1
        )


def test_gpu_passes_pad_small_models_more_than_large_models() -> None:
    lengths = [16, 64, 256, 1024, 4000, 4096]
    small, large = (ForwardPasses(cpu_tokens=1024, parameters=size) for size in (22 * MIB, 8 << 30))
    assert large.group_texts(lengths, OnGpu()) == [[0, 1], [2], [3], [4, 5]]
    assert small.group_texts(lengths, OnGpu()) == [[0, 1, 2, 3], [4, 5]]
    assert len(small.group_texts([128] * (GPU_TOKENS // 128), OnGpu())) == 1
    assert len(small.group_texts([128] * (GPU_TOKENS // 128), b"")) == 16


def test_gpu_passes_shrink_for_large_outputs_or_sharded_models() -> None:
    lengths = [128] * 256
    logits = ForwardPasses(cpu_tokens=2048, parameters=8 << 30, output_bytes=256_000 * 2)
    part = ForwardPasses(cpu_tokens=2048, parameters=8 << 30, is_sharded=True)
    huge = ForwardPasses(cpu_tokens=2048, parameters=8 << 30, output_bytes=1 << 30)
    assert [max(map(len, each.group_texts(lengths, OnGpu()))) for each in (logits, part, huge)] == [32, 16, 16]


@given(LENGTHS)
def test_passes_without_padding_have_texts_of_one_length(lengths: list[int]) -> None:
    passes = ForwardPasses(cpu_tokens=100, parameters=MIB)
    groups = passes.group_texts(lengths, b"", max_padding=0.0)
    assert sorted(at for group in groups for at in group) == list(range(len(lengths)))
    for group in groups:
        assert len({lengths[at] for at in group}) == 1
        assert len(group) == 1 or sum(lengths[at] for at in group) <= 100
