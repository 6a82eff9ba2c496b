from hypothesis import given
from hypothesis import strategies as st

from arl_core.waiting import ClassQueue, WaitingIndex, arrival_order
from support.builders import a_class, an_action, numbered

actions = st.lists(
    st.tuples(st.integers(1, 10_000), st.integers(-2, 2), st.floats(0, 100)), unique_by=lambda entry: entry[0]
)


@given(actions, st.sets(st.integers(1, 10_000)))
def test_a_queue_is_walked_in_arrival_order_without_what_was_discarded(
    entries: list[tuple[int, int, float]], gone: set[int]
) -> None:
    cls = a_class()
    queue = ClassQueue(cls)
    for number, priority, submitted in entries:
        queue.add(an_action(number, cls=cls, priority=priority, submitted=submitted))
    for number in gone:
        queue.discard(numbered(number))
    kept = [
        an_action(number, cls=cls, priority=priority, submitted=submitted)
        for number, priority, submitted in entries
        if number not in gone
    ]
    assert list(queue) == sorted(kept, key=arrival_order)
    assert list(queue) == sorted(kept, key=arrival_order), "walking changes nothing"
    assert len(queue) == len(kept)


def test_many_discards_do_not_keep_the_memory() -> None:
    cls = a_class()
    queue = ClassQueue(cls)
    for number in range(1, 1001):
        queue.add(an_action(number, cls=cls))
        queue.discard(numbered(number))
    assert len(queue._heap) < 200


def test_adding_an_action_again_replaces_it() -> None:
    index = WaitingIndex()
    index.add(an_action(1, cls=a_class(1)))
    index.add(an_action(1, cls=a_class(2)))
    assert [queue.cls.key for queue in index.queues()] == [2]
    assert len(index) == 1


def test_an_action_that_comes_back_is_walked_once() -> None:
    cls = a_class()
    queue = ClassQueue(cls)
    queue.add(an_action(1, cls=cls))
    queue.discard(numbered(1))
    queue.add(an_action(1, cls=cls))
    assert [action.id for action in queue] == [numbered(1)]
