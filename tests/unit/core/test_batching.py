"""Selection of the items of one batch, and grouping of texts by length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_core.control.batching import length_buckets, next_batch, padding_share

COSTS = st.lists(st.lists(st.integers(1, 600), max_size=12), max_size=12)


class TestNextBatch:
    def test_single_item_action_is_not_delayed_by_large_action(self) -> None:
        assert next_batch([[10] * 300, [10]], budget=60) == [5, 1]

    def test_item_above_budget_gets_its_own_batch(self) -> None:
        assert next_batch([[900], [1]], budget=100) == [1, 0]

    def test_empty_queue_gives_empty_batch(self) -> None:
        assert next_batch([], budget=100) == []

    @given(COSTS, st.integers(1, 1000))
    def test_batch_respects_budget_and_is_not_empty_while_items_wait(
        self, waiting: list[list[int]], budget: int
    ) -> None:
        taken = next_batch(waiting, budget=budget)
        spent = sum(sum(costs[:count]) for costs, count in zip(waiting, taken, strict=True))
        assert bool(sum(taken)) == any(waiting)
        assert spent <= budget or sum(taken) == 1


class TestLengthBuckets:
    def test_short_text_is_not_padded_to_long_text(self) -> None:
        assert length_buckets([256, 4, 250, 5, 5], max_tokens=4096) == [[1, 3, 4], [2, 0]]

    def test_text_longer_than_bucket_gets_its_own_bucket(self) -> None:
        assert length_buckets([300, 300], max_tokens=100) == [[0], [1]]

    def test_small_padding_is_preferred_to_extra_pass(self) -> None:
        assert length_buckets([8, 16], max_tokens=4096, pass_tokens=8) == [[0, 1]]
        assert length_buckets([8, 17], max_tokens=4096, pass_tokens=8) == [[0], [1]]

    @given(st.lists(st.integers(1, 256), max_size=80), st.integers(1, 4096), st.integers(0, 30))
    def test_every_text_is_in_exactly_one_bucket_within_limits(
        self, lengths: list[int], max_tokens: int, pass_tokens: int
    ) -> None:
        found = length_buckets(lengths, max_tokens=max_tokens, pass_tokens=pass_tokens)
        assert sorted(at for group in found for at in group) == list(range(len(lengths)))
        for group in found:
            inside = [lengths[at] for at in group]
            padded = max(inside) * len(group)
            assert padded <= max_tokens or len(group) == 1
            assert padded - sum(inside) <= max(0.15 * padded, pass_tokens)

    def test_padding_share_is_fraction_of_wasted_tokens(self) -> None:
        assert padding_share([10, 5, 1], [[0, 1], [2]]) == pytest.approx(5 / 21)
