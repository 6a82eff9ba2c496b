import itertools

from hypothesis import given
from hypothesis import strategies as st

from arl_core.durations.curves import ParallelismOption
from arl_core.policies.prefix_allocation import PrefixAllocation

UNITS = 8

seconds = st.floats(0.1, 100.0)
widths = st.lists(st.tuples(st.integers(1, 8), seconds), min_size=1, max_size=3, unique_by=lambda each: each[0]).map(
    lambda found: [ParallelismOption(units * 1000, units, takes_s) for units, takes_s in sorted(found)]
)


@given(st.lists(widths, min_size=1, max_size=4))
def test_prefix_allocation_matches_exhaustive_search(choices: list[list[ParallelismOption]]) -> None:
    allocation = PrefixAllocation(choices, UNITS)
    for first in range(len(choices) + 1):
        fitting = [each for each in itertools.product(*choices[:first]) if sum(width.units for width in each) <= UNITS]
        best = min((sum(width.seconds for width in each) for each in fitting), default=float("inf"))
        assert abs(allocation.total_s(first) - best) < 1e-9 or allocation.total_s(first) == best
        if fitting:
            chosen = allocation.chosen_options(first)
            assert sum(width.units for width in chosen) <= UNITS
            assert abs(sum(width.seconds for width in chosen) - best) < 1e-9
