import gc
import random
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from arl_core.domain.model import (
    ActionClass,
    CpuSharing,
    PinnedEnvironment,
    QueuedAction,
    ResourceDemand,
    ResourceShape,
)
from arl_core.policies.spar import SparConstants, SparPolicy, fair_cursor
from arl_core.queue.action_bucket import CHUNK_SIZE, ActionBucket, BucketKey, QueueEntry, arrival_order
from arl_core.queue.queue_index import QueueCursor, QueueIndex
from support.builders import a_class, a_pool, a_snapshot, an_action, numbered

actions = st.lists(
    st.tuples(st.integers(1, 10_000), st.integers(-2, 2), st.floats(0, 100)), unique_by=lambda entry: entry[0]
)


def a_bucket(cls: ActionClass) -> ActionBucket:
    return ActionBucket(cls, BucketKey(cls.variant, 1, 0, None, makes_environment=False))


@given(actions, st.sets(st.integers(1, 10_000)))
def test_queue_yields_actions_in_arrival_order_without_discarded_actions(
    entries: list[tuple[int, int, float]], gone: set[int]
) -> None:
    classes = [a_class(key) for key in range(3)]
    index = QueueIndex()
    for number, priority, submitted in entries:
        index.add(an_action(number, cls=classes[number % 3], priority=priority, submitted=submitted))
    for number in gone:
        index.discard(numbered(number))
    kept = [
        an_action(number, cls=classes[number % 3], priority=priority, submitted=submitted)
        for number, priority, submitted in entries
        if number not in gone
    ]
    assert list(index.in_order()) == sorted(kept, key=arrival_order)
    assert list(index.in_order()) == sorted(kept, key=arrival_order), "iteration must not change the queue"
    assert len(index) == len(kept) == sum(len(bucket) for bucket in index.buckets())


changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.integers(0, 3)),
        st.tuples(st.just("discard"), st.integers(1, 40), st.just(0)),
        st.tuples(st.just("pause"), st.integers(0, 15), st.just(0)),
    ),
    max_size=60,
)


@given(changes)
def test_actions_of_paused_tasks_are_in_no_view_and_return_with_it(made: list[tuple[str, int, int]]) -> None:
    index, queued, paused = QueueIndex(), dict[int, QueuedAction](), frozenset[int]()
    for change, number, task in made:
        if change == "add":
            queued[number] = an_action(number, task=task, cls=a_class(number % 3), submitted=float(number))
            index.add(queued[number])
        elif change == "discard":
            queued.pop(number, None)
            index.discard(numbered(number))
        else:
            paused = frozenset(task for task in range(4) if number >> task & 1)
            index.pause(paused)
        visible = [action for action in queued.values() if action.task not in paused]
        expected = QueueIndex()
        for action in visible:
            expected.add(action)
        assert list(index.in_order()) == sorted(visible, key=arrival_order)
        assert index.by_task().keys() == expected.by_task().keys()
        assert set(index.nodes()) == set(expected.nodes())
        assert set(index.cores_needed()) == set(expected.cores_needed())
        assert {action.id for action in queued.values() if action.id in index} == {action.id for action in visible}
        assert len(index) == len(queued)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), max_size=30), st.lists(st.integers(0, 50), min_size=4)
)
def test_size_penalty_orders_bucket_as_if_it_arrived_later(entries: list[tuple[int, int]], leads: list[int]) -> None:
    index = QueueIndex()
    for number, (key, submitted) in enumerate(entries, 1):
        index.add(an_action(number, cls=a_class(key), submitted=submitted))
    buckets = list(index.buckets())
    walk = QueueCursor(buckets, [leads[bucket.cls.key] for bucket in buckets])
    walked = []
    while walk.head is not None:
        walked.append(walk.head)
        walk.advance()
    assert walked == sorted(walked, key=lambda action: (action.submitted + leads[action.cls.key], action.id))
    assert len(walked) == len(entries)


def test_skipped_bucket_is_not_visited_again() -> None:
    index = QueueIndex()
    for number in range(1, 7):
        index.add(an_action(number, cls=a_class(number % 2)))
    walk = QueueCursor(index.buckets())
    walk.skip_bucket()
    assert walk.head is not None
    assert walk.head.id == numbered(2)
    assert walk.bucket.cls.key == 0


def test_pinned_actions_are_indexed_by_their_node() -> None:
    index = QueueIndex()
    home = PinnedEnvironment(id=numbered(100), node=2)
    index.add(an_action(1, environment=home))
    index.add(an_action(2))
    assert [[action.id for bucket in index.buckets_on(node) for action in bucket] for node in (2, None)] == [
        [numbered(1)],
        [numbered(2)],
    ]
    index.discard(numbered(1))
    assert list(index.nodes()) == [None]


def test_bucket_keeps_arrival_order_across_chunks() -> None:
    rng, cls = random.Random(0), a_class()
    bucket, waiting = a_bucket(cls), dict[int, QueuedAction]()
    entries: dict[int, QueueEntry] = {}
    for number in range(1, 6 * CHUNK_SIZE):
        waiting[number] = an_action(number, cls=cls, submitted=rng.random())
        entries[number] = bucket.add(waiting[number])
        if rng.random() < 0.3:
            gone = bucket.first if rng.random() < 0.5 else waiting[rng.choice([*waiting])]
            its_number = gone.id.int
            del waiting[its_number]
            bucket.discard(entries[its_number])
    assert list(bucket) == sorted(waiting.values(), key=arrival_order)
    walk, walked = QueueCursor([bucket]), []
    while walk.head is not None:
        walked.append(walk.head)
        walk.advance()
    assert walked == list(bucket)


def test_index_is_freed_without_garbage_collection() -> None:
    index = QueueIndex()
    for number in range(1, 10):
        index.add(an_action(number, cls=a_class(number % 3)))
    bucket = ref(next(index.buckets()))
    assert len(list(index.in_order())) == 9
    gc.disable()
    try:
        del index
        assert bucket() is None
    finally:
        gc.enable()


def test_discarded_entries_do_not_accumulate() -> None:
    cls = a_class()
    bucket = a_bucket(cls)
    for number in range(1, 1001):
        bucket.discard(bucket.add(an_action(number, cls=cls)))
    assert bucket.entry_count < 200


def test_action_added_again_replaces_earlier_entry() -> None:
    index = QueueIndex()
    index.add(an_action(1, cls=a_class(1)))
    index.add(an_action(1, cls=a_class(2)))
    assert [bucket.cls.key for bucket in index.buckets()] == [2]
    assert len(index) == 1


def test_discarded_action_added_again_is_yielded_once() -> None:
    cls = a_class()
    bucket = a_bucket(cls)
    bucket.add(an_action(1, cls=cls))
    bucket.discard(bucket.add(an_action(2, cls=cls)))
    bucket.add(an_action(2, cls=cls))
    assert [action.id for action in bucket] == [numbered(1), numbered(2)]


def test_critical_action_goes_before_others_of_its_priority_only() -> None:
    index, cls = QueueIndex(), a_class(1)
    for number, priority in ((1, 1), (2, 0), (3, 0)):
        index.add(an_action(number, cls=cls, priority=priority))
    index.add(an_action(4, cls=cls)._replace(is_critical=True))
    assert [action.id for action in index.in_order()] == [numbered(number) for number in (1, 4, 2, 3)]
    index.add(an_action(4, cls=cls))
    assert [action.id for action in index.in_order()] == [numbered(number) for number in (1, 2, 3, 4)]


def test_critical_action_that_shares_cores_needs_only_its_guarantee() -> None:
    sharing = CpuSharing(guarantee_milli=100)
    demand = ResourceDemand({"cpu_milli": 500})
    cls = ActionClass(key=9, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand, sharing=sharing)
    node = a_pool(free={"cpu_milli": 100})
    queued = [an_action(1, cls=cls), an_action(2, cls=cls)]
    assert SparPolicy().plan(a_snapshot(queued=queued, pools=[node])).grants == ()
    queued[1] = queued[1]._replace(is_critical=True)
    (grant,) = SparPolicy().plan(a_snapshot(queued=queued, pools=[node])).grants
    assert (grant.fence.action_id, grant.resources) == (numbered(2), {"cpu_milli": 100})


def test_critical_action_does_not_go_before_a_task_that_used_less() -> None:
    cls = a_class(1)
    critical = an_action(1, cls=cls)._replace(is_critical=True)
    other = an_action(2, cls=cls)._replace(task=2)
    snapshot = a_snapshot(queued=[critical, other])
    for task in (1, 2):
        snapshot.shares.add_action(task)
    snapshot.shares.charge_expected(1, 5.0)
    cursor = fair_cursor(snapshot, snapshot.queue.by_task(), SparConstants())
    assert cursor.head is not None
    assert cursor.head.id == other.id


def test_critical_action_in_an_environment_starts_although_slots_fill_the_node() -> None:
    sharing = CpuSharing(guarantee_milli=100)
    demand = ResourceDemand({"cpu_milli": 500})
    cls = ActionClass(key=9, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand, sharing=sharing)
    node = a_pool(free={"cpu_milli": 1000})
    queued = [an_action(number, cls=cls) for number in (1, 2, 3)]
    home = PinnedEnvironment(numbered(40), node.node)
    queued.append(an_action(4, cls=cls)._replace(is_critical=True, environment=home))
    grants = SparPolicy().plan(a_snapshot(queued=queued, pools=[node])).grants
    assert {grant.fence.action_id: grant.resources["cpu_milli"] for grant in grants} == {
        numbered(4): 1,
        numbered(1): 499,
        numbered(2): 499,
    }
