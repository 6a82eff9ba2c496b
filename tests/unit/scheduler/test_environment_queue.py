"""Test the queue of one environment against a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from arl_scheduler.index.environment_queue import EnvironmentQueue
from support.builders import numbered


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=300))
def test_queue_is_equal_to_a_sorted_list(steps: list[tuple[bool, int]]) -> None:
    queue, expected = EnvironmentQueue(), set[int]()
    for is_added, number in steps:
        (queue.add if is_added else queue.discard)(numbered(number))
        (expected.add if is_added else expected.discard)(number)
        in_order = [numbered(each) for each in sorted(expected)]
        assert list(queue) == in_order
        assert len(queue) == len(in_order)
        assert queue.first() == (in_order[0] if in_order else None)
        assert queue.page(2, 3) == in_order[2:5]
        assert queue.count_before(numbered(20)) == sum(each < 20 for each in expected)
        assert (numbered(number) in queue) is is_added


def test_removals_from_a_long_queue_do_not_walk_it() -> None:
    """A walk for each removal would compare two billion ids and take minutes."""
    ids = [numbered(each) for each in range(60_000)]
    queue = EnvironmentQueue()
    for id in ids:
        queue.add(id)
    for id in ids:
        assert queue.first() == id
        queue.discard(id)
    assert len(queue) == 0
