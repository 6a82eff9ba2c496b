from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from arl_core.fence import Fence
from arl_cpu.cores import CoreMap
from support.builders import numbered


def a_fence(number: int) -> Fence:
    return Fence(numbered(number), 1)


class TestCoreMap:
    def test_whole_cores_are_the_actions_own(self) -> None:
        cores = CoreMap(range(4))
        first, second = cores.assign(a_fence(1), 2000), cores.assign(a_fence(2), 2000)
        assert sorted(first + second) == [0, 1, 2, 3]

    def test_a_fraction_floats_over_what_is_nobodys_own(self) -> None:
        cores = CoreMap(range(4))
        own = cores.assign(a_fence(1), 3000)
        shared = cores.assign(a_fence(2), 500)
        assert len(own) == 3
        assert set(shared) == set(range(4)) - set(own)

    def test_two_fractions_share(self) -> None:
        cores = CoreMap(range(2))
        assert cores.assign(a_fence(1), 500) == cores.assign(a_fence(2), 1500) == (0, 1)

    def test_released_cores_are_given_again(self) -> None:
        cores = CoreMap(range(2))
        own = cores.assign(a_fence(1), 2000)
        cores.release(a_fence(1))
        assert cores.assign(a_fence(2), 2000) == own

    def test_releasing_twice_frees_nobody_elses_cores(self) -> None:
        cores = CoreMap(range(2))
        cores.assign(a_fence(1), 1000)
        cores.release(a_fence(1))
        own = cores.assign(a_fence(2), 1000)
        cores.release(a_fence(1))
        assert not set(own) & set(cores.assign(a_fence(3), 1000))

    def test_adopted_cores_are_not_given_to_another(self) -> None:
        cores = CoreMap(range(2))
        cores.adopt(a_fence(1), (1,), 1000)
        assert cores.assign(a_fence(2), 1000) == (0,)

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from([200, 500, 1000, 1500, 2000, 3000]))))
    def test_no_core_is_ever_two_actions_own(self, steps: list[tuple[bool, int, int]]) -> None:
        """Against the manager's rule that what is assigned fits the node."""
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
