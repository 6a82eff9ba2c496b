from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_core.domain.model import Fence
from arl_cpu.node.core_map import CoreMap, choose_cores
from support.builders import numbered


def a_fence(number: int) -> Fence:
    return Fence(numbered(number), 1)


TWO_SOCKETS = {core: core // 4 for core in range(8)}


class TestChooseCores:
    def test_action_uses_numa_node_that_it_fills_best(self) -> None:
        """Node 0 has two free cores and node 1 has four; two cores come from node 0."""
        assert choose_cores(2, [0, 1, 4, 5, 6, 7], numa_nodes=TWO_SOCKETS) == (0, 1)
        assert choose_cores(3, [0, 1, 4, 5, 6, 7], numa_nodes=TWO_SOCKETS) == (5, 6, 7)

    def test_action_larger_than_numa_node_fills_largest_first(self) -> None:
        assert choose_cores(5, [0, 1, 4, 5, 6, 7], numa_nodes=TWO_SOCKETS) == (1, 4, 5, 6, 7)

    def test_growth_keeps_its_cores_and_prefers_their_numa_node(self) -> None:
        assert choose_cores(2, [0, 1, 4, 5, 6, 7], numa_nodes=TWO_SOCKETS, preferred=[4]) == (4, 7)
        assert choose_cores(4, [0, 1, 3, 4, 5, 6, 7], numa_nodes=TWO_SOCKETS, preferred=[3]) == (0, 1, 3, 7)

    def test_shrink_keeps_cores_of_one_numa_node(self) -> None:
        assert choose_cores(2, [0, 4, 5, 6], numa_nodes=TWO_SOCKETS, preferred=[0, 4, 5, 6]) == (5, 6)

    def test_least_loaded_cores_are_chosen_first(self) -> None:
        assert choose_cores(1, [0, 1, 2], numa_nodes={}, load=Counter({2: 500, 1: 100, 0: 100})) == (1,)
        assert choose_cores(2, range(8), numa_nodes=TWO_SOCKETS, load=Counter((0, 1, 2, 6, 7))) == (4, 5)

    @given(
        st.integers(1, 8),
        st.sets(st.integers(0, 7)),
        st.sets(st.integers(0, 7)),
        st.dictionaries(st.integers(0, 7), st.integers(0, 2)),
    )
    def test_chosen_cores_are_candidates_and_preferred_cores_come_first(
        self, count: int, candidates: set[int], keep: set[int], nodes: dict[int, int]
    ) -> None:
        chosen = choose_cores(count, candidates, numa_nodes=nodes, preferred=keep)
        assert set(chosen) <= candidates
        assert len(chosen) == min(count, len(candidates))
        assert len(keep.intersection(chosen)) == min(count, len(keep & candidates))


class TestCoreMap:
    def test_whole_cores_are_exclusive(self) -> None:
        cores = CoreMap(range(4))
        first, second = cores.assign(a_fence(1), 2000), cores.assign(a_fence(2), 2000)
        assert sorted(first + second) == [0, 1, 2, 3]

    def test_fractional_action_shares_non_exclusive_cores(self) -> None:
        cores = CoreMap(range(4))
        own = cores.assign(a_fence(1), 3000)
        shared = cores.assign(a_fence(2), 500)
        assert len(own) == 3
        assert set(shared) == set(range(4)) - set(own)

    @pytest.mark.parametrize(("cpu_milli", "count"), [(1, 1), (500, 1), (1500, 2), (2001, 3)])
    def test_fractional_amount_is_rounded_up_to_whole_cores(self, cpu_milli: int, count: int) -> None:
        assert len(CoreMap(range(8)).assign(a_fence(1), cpu_milli)) == count

    def test_shared_map_assigns_all_cores_to_every_action(self) -> None:
        cores = CoreMap(range(4), shared=True)
        assert [cores.assign(a_fence(number), 2000) for number in range(5)] == [(0, 1, 2, 3)] * 5

    def test_fractional_actions_share_only_if_no_core_is_unused(self) -> None:
        cores = CoreMap(range(2))
        first, second = cores.assign(a_fence(1), 500), cores.assign(a_fence(2), 300)
        assert set(first) | set(second) == {0, 1}
        assert cores.assign(a_fence(3), 300) == second

    def test_whole_cores_avoid_cores_of_fractional_actions(self) -> None:
        cores = CoreMap(range(3))
        shared = cores.assign(a_fence(1), 500)
        assert not set(shared) & set(cores.assign(a_fence(2), 2000))

    def test_released_cores_are_assigned_again(self) -> None:
        cores = CoreMap(range(2))
        own = cores.assign(a_fence(1), 2000)
        cores.release(a_fence(1))
        assert cores.assign(a_fence(2), 2000) == own

    def test_second_release_does_not_free_cores_of_another_action(self) -> None:
        cores = CoreMap(range(2))
        cores.assign(a_fence(1), 1000)
        cores.release(a_fence(1))
        own = cores.assign(a_fence(2), 1000)
        cores.release(a_fence(1))
        assert not set(own) & set(cores.assign(a_fence(3), 1000))

    def test_adopted_cores_are_not_assigned_to_another_action(self) -> None:
        cores = CoreMap(range(2))
        cores.adopt(a_fence(1), (1,), 1000)
        assert cores.assign(a_fence(2), 1000) == (0,)

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from([200, 500, 1000, 1500, 2000, 3000]))))
    def test_no_core_is_exclusive_to_two_actions(self, steps: list[tuple[bool, int, int]]) -> None:
        """The steps follow the manager's rule that assigned amounts fit the node."""
        cores, held, own = CoreMap(range(6)), dict[int, int](), dict[int, tuple[int, ...]]()
        for starts, number, amount in steps:
            if number in held and not starts:
                cores.release(a_fence(number))
                del held[number]
                own.pop(number, None)
            elif number not in held and starts and sum(held.values()) + amount <= 6000:
                chosen = cores.assign(a_fence(number), amount)
                held[number] = amount
                assert chosen
                if amount % 1000 == 0:
                    own[number] = chosen
                    assert len(chosen) * 1000 == amount
            assert not own or max(Counter(core for each in own.values() for core in each).values()) == 1
