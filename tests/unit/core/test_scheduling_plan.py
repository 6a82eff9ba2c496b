from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from arl_core.domain.model import PinnedEnvironment, ResourceShape
from arl_core.policies.policy import FirstComeFirstServed
from support.builders import a_class, a_pool, a_snapshot, an_action, numbered

FCFS = FirstComeFirstServed()


class TestFirstComeFirstServed:
    def test_action_that_fits_nowhere_stays_queued(self) -> None:
        snapshot = a_snapshot(queued=[an_action(1, cpu_milli=8000)], pools=[a_pool(cpu_milli=4000)])
        assert FCFS.plan(snapshot).grants == ()

    def test_action_that_fits_nowhere_does_not_block_others(self) -> None:
        snapshot = a_snapshot(queued=[an_action(1, cpu_milli=8000), an_action(2, cpu_milli=1000)], pools=[a_pool()])
        assert [grant.fence.action_id for grant in FCFS.plan(snapshot).grants] == [numbered(2)]

    def test_earliest_action_is_granted_first(self) -> None:
        queued = [an_action(number, cls=a_class(number % 3)) for number in (5, 3, 1, 4, 2)]
        grants = FCFS.plan(a_snapshot(queued=queued, pools=[a_pool(cpu_milli=3000)])).grants
        assert [grant.fence.action_id for grant in grants] == [numbered(1), numbered(2), numbered(3)]

    def test_higher_priority_action_is_granted_first(self) -> None:
        queued = [an_action(1), an_action(2, priority=1)]
        grants = FCFS.plan(a_snapshot(queued=queued, pools=[a_pool(cpu_milli=1000)])).grants
        assert [grant.fence.action_id for grant in grants] == [numbered(2)]

    def test_action_gets_its_minimum_demand(self) -> None:
        (grant,) = FCFS.plan(a_snapshot(queued=[an_action(1, cpu_milli=1000)], pools=[a_pool(cpu_milli=64000)])).grants
        assert grant.resources == {"cpu_milli": 1000}

    def test_grant_increments_grant_number_of_fence(self) -> None:
        (grant,) = FCFS.plan(a_snapshot(queued=[an_action(1)._replace(grant_no=4)], pools=[a_pool()])).grants
        assert grant.fence.grant_no == 5

    def test_unschedulable_node_gets_no_grants(self) -> None:
        assert FCFS.plan(a_snapshot(queued=[an_action(1)], pools=[a_pool(accepting=False)])).grants == ()

    def test_unpinned_action_goes_to_fullest_node_that_fits(self) -> None:
        pools = [a_pool(1, cpu_milli=8000), a_pool(2, cpu_milli=8000, free={"cpu_milli": 2000})]
        (grant,) = FCFS.plan(a_snapshot(queued=[an_action(1)], pools=pools)).grants
        assert grant.node == 2


class TestEnvironmentPlacement:
    def test_pinned_action_waits_for_its_node(self) -> None:
        pinned = an_action(1, environment=PinnedEnvironment(id=numbered(100), node=1))
        pools = [a_pool(1, cpu_milli=1000, free={"cpu_milli": 0}), a_pool(2)]
        assert FCFS.plan(a_snapshot(queued=[pinned], pools=pools)).grants == ()

    def test_waiting_pinned_action_does_not_block_its_class(self) -> None:
        cls = a_class()
        first = an_action(1, cls=cls, environment=PinnedEnvironment(id=numbered(100), node=1))
        second = an_action(2, cls=cls, environment=PinnedEnvironment(id=numbered(101), node=2))
        pools = [a_pool(1, cpu_milli=1000, free={"cpu_milli": 0}), a_pool(2)]
        assert [grant.node for grant in FCFS.plan(a_snapshot(queued=[first, second], pools=pools)).grants] == [2]

    def test_action_in_existing_environment_demands_no_memory(self) -> None:
        cls = a_class(cpu_milli=1000, memory_mib=512)
        action = an_action(1, cls=cls, environment=PinnedEnvironment(id=numbered(100), node=1))
        pool = a_pool(cpu_milli=1000, memory_mib=512, free={"cpu_milli": 1000, "memory_mib": 0})
        assert len(FCFS.plan(a_snapshot(queued=[action], pools=[pool])).grants) == 1

    def test_new_environment_demands_its_memory(self) -> None:
        cls = a_class(cpu_milli=1000, memory_mib=512)
        action = an_action(1, cls=cls, environment=PinnedEnvironment(id=numbered(100), node=None))
        pool = a_pool(cpu_milli=1000, memory_mib=512, free={"cpu_milli": 1000, "memory_mib": 100})
        assert FCFS.plan(a_snapshot(queued=[action], pools=[pool])).grants == ()

    def test_new_environment_goes_to_node_with_fewest_environments(self) -> None:
        action = an_action(1, environment=PinnedEnvironment(id=numbered(100), node=None))
        (grant,) = FCFS.plan(a_snapshot(queued=[action], pools=[a_pool(1, environments=3), a_pool(2)])).grants
        assert (grant.node, grant.environment) == (2, numbered(100))

    def test_new_environments_leave_memory_headroom_for_other_actions(self) -> None:
        cls = a_class(cpu_milli=1000, memory_mib=100)
        fresh = [
            an_action(n, cls=cls, environment=PinnedEnvironment(id=numbered(100 + n), node=None)) for n in range(1, 12)
        ]
        pool = a_pool(cpu_milli=64000, memory_mib=800)
        granted = FCFS.plan(a_snapshot(queued=fresh, pools=[pool])).grants
        assert len(granted) == 7
        scoring = an_action(50, cpu_milli=1000, memory_mib=100)
        left = a_pool(cpu_milli=1000, memory_mib=800, free={"cpu_milli": 1000, "memory_mib": 100}, environments=7)
        assert len(FCFS.plan(a_snapshot(queued=[*fresh[7:], scoring], pools=[left])).grants) == 1

    def test_single_environment_may_use_all_memory(self) -> None:
        cls = a_class(cpu_milli=1000, memory_mib=800)
        action = an_action(1, cls=cls, environment=PinnedEnvironment(id=numbered(100), node=None))
        assert len(FCFS.plan(a_snapshot(queued=[action], pools=[a_pool(cpu_milli=1000, memory_mib=800)])).grants) == 1


class TestResourceShapes:
    def test_device_group_is_aligned_and_contiguous(self) -> None:
        pool = a_pool(shape=ResourceShape.GROUP, gpu=8, free={"gpu": 5}, devices=(1, 2, 3, 6, 7))
        action = an_action(1, cls=a_class(shape=ResourceShape.GROUP, gpu=2))
        (grant,) = FCFS.plan(a_snapshot(queued=[action], pools=[pool])).grants
        assert grant.devices == (2, 3)

    def test_scattered_devices_form_no_group(self) -> None:
        pool = a_pool(shape=ResourceShape.GROUP, gpu=8, free={"gpu": 4}, devices=(1, 3, 5, 7))
        assert (
            FCFS.plan(
                a_snapshot(queued=[an_action(1, cls=a_class(shape=ResourceShape.GROUP, gpu=2))], pools=[pool])
            ).grants
            == ()
        )

    def test_device_groups_of_one_round_are_disjoint(self) -> None:
        pool = a_pool(shape=ResourceShape.GROUP, gpu=4, devices=range(4))
        queued = [an_action(number, cls=a_class(shape=ResourceShape.GROUP, gpu=2)) for number in (1, 2, 3)]
        grants = FCFS.plan(a_snapshot(queued=queued, pools=[pool])).grants
        assert [grant.devices for grant in grants] == [(0, 1), (2, 3)]

    def test_quota_shape_limits_number_of_grants(self) -> None:
        pool = a_pool(shape=ResourceShape.QUOTA, concurrency=2)
        queued = [an_action(number, cls=a_class(shape=ResourceShape.QUOTA, concurrency=1)) for number in (1, 2, 3)]
        assert len(FCFS.plan(a_snapshot(queued=queued, pools=[pool])).grants) == 2

    def test_action_is_not_placed_on_node_of_other_shape(self) -> None:
        pool = a_pool(shape=ResourceShape.QUOTA, cpu_milli=8000)
        assert FCFS.plan(a_snapshot(queued=[an_action(1)], pools=[pool])).grants == ()


@given(
    st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 300), st.integers(0, 3)), max_size=30),
    st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 500)), min_size=1, max_size=4),
)
def test_plan_never_overallocates_and_leaves_no_fitting_action(
    demands: list[tuple[int, int, int]], pools: list[tuple[int, int]]
) -> None:
    queued = [
        an_action(number, priority=priority, cpu_milli=cpu + 1, memory_mib=memory)
        for number, (cpu, memory, priority) in enumerate(demands, 1)
    ]
    free = [a_pool(node, cpu_milli=cpu, memory_mib=memory) for node, (cpu, memory) in enumerate(pools, 1)]
    decided = FCFS.plan(a_snapshot(queued=queued, pools=free))
    left = {pool.node: Counter(pool.available) for pool in free}
    for grant in decided.grants:
        left[grant.node].subtract(grant.resources)
    assert all(amount >= 0 for amounts in left.values() for amount in amounts.values())
    granted = {grant.fence.action_id for grant in decided.grants}
    assert len(granted) == len(decided.grants)
    for action in queued:
        fits_somewhere = any(
            all(amount <= amounts[resource] for resource, amount in action.cls.demand.minimum.items())
            for amounts in left.values()
        )
        assert action.id in granted or not fits_somewhere


@given(st.permutations(range(1, 13)))
def test_insertion_order_does_not_change_plan(order: list[int]) -> None:
    def actions(numbers: list[int]) -> list[object]:
        return [an_action(number, cls=a_class(number % 3), submitted=float(number // 4)) for number in numbers]

    pools = [a_pool(1, cpu_milli=3000), a_pool(2, cpu_milli=2000)]
    first = FCFS.plan(a_snapshot(queued=actions(order), pools=pools))  # type: ignore[arg-type]
    second = FCFS.plan(a_snapshot(queued=actions(sorted(order)), pools=pools))  # type: ignore[arg-type]
    assert first == second
