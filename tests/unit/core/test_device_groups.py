from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    ExclusiveService,
    Fence,
    Grant,
    NodeResources,
    QueuedAction,
    ResidentService,
    ResourceDemand,
    ResourceShape,
    RunningAction,
)
from arl_core.durations.curves import CurveCache
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from support.builders import a_pool, a_snapshot, an_action

SMALL = ExclusiveService("small", fixed_s=0.5, device_s=1.0)
LARGE = ExclusiveService("large", fixed_s=0.5, device_s=10.0)
NOW = 1000.0
POLICIES: tuple[SchedulingPolicy, ...] = (FirstComeFirstServed(), ReferencePolicy(), SparPolicy())


def a_score(
    number: int, service: ExclusiveService = SMALL, degrees: tuple[int, ...] = (1, 2, 4), submitted: float = 999.0
) -> QueuedAction:
    elastic = ElasticResource("gpu", degrees, AmdahlScaling(0.9, unit=1))
    key = {"small": 1, "large": 2}[service.name]
    cls = ActionClass(
        key=key,
        kind="score",
        shape=ResourceShape.GROUP,
        demand=ResourceDemand({"gpu": degrees[0]}, elastic),
        service=service,
    )
    return an_action(number, cls=cls, submitted=submitted)


def devices(count: int = 8, *resident: ResidentService, free: tuple[int, ...] | None = None) -> NodeResources:
    there = tuple(range(count)) if free is None else free
    pool = a_pool(shape=ResourceShape.GROUP, gpu=count, free={"gpu": len(there)}, devices=there)
    return replace(pool, resident_services=resident)


def resident(service: ExclusiveService, *on: int, used_at: float = 990.0) -> ResidentService:
    return ResidentService(service, on, used_at)


def granted(policy: SchedulingPolicy, *queued: QueuedAction, pool: NodeResources) -> tuple[Grant, ...]:
    return policy.plan(a_snapshot(queued=queued, pools=[pool])).grants


@dataclass(frozen=True)
class Constant:
    """A duration model in which every action takes `s` seconds."""

    s: float

    def seconds(self, cls: ActionClass, amount: int) -> float:
        return self.s


def running(action: QueuedAction, *, takes_s: float) -> tuple[RunningAction, CurveCache]:
    """Return the action as running on device 0 since now, with a cache of its duration."""
    curves = CurveCache(Constant(takes_s))
    curves.now = NOW
    fence = Fence(action.id, 1)
    return RunningAction(
        fence=fence, cls=action.cls, node=1, resources={"gpu": 1}, granted=NOW, task=1, started=NOW, allocated_since=NOW
    ), curves


def granted_beside(
    other: tuple[RunningAction, CurveCache], action: QueuedAction, *, pool: NodeResources
) -> tuple[Grant, ...]:
    each, curves = other
    return SparPolicy().plan(replace(a_snapshot(queued=[action], pools=[pool], running=[each]), curves=curves)).grants


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
class TestEveryPolicy:
    def test_device_group_with_resident_service_is_preferred(self, policy: SchedulingPolicy) -> None:
        pool = devices(8, resident(LARGE, 0), resident(SMALL, 4, 5, 6, 7), resident(SMALL, 3))
        (grant,) = granted(policy, a_score(1, degrees=(1,)), pool=pool)
        assert grant.devices == (3,)

    def test_least_recently_used_service_is_evicted(self, policy: SchedulingPolicy) -> None:
        pool = devices(2, resident(LARGE, 0, used_at=999.0), resident(LARGE, 1, used_at=100.0))
        (grant,) = granted(policy, a_score(1, degrees=(1,)), pool=pool)
        assert grant.devices == (1,)

    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_device_groups_are_aligned_free_and_disjoint(self, policy: SchedulingPolicy, data: st.DataObject) -> None:
        free = tuple(sorted(data.draw(st.sets(st.integers(0, 7)))))
        queued = [
            a_score(number, data.draw(st.sampled_from([SMALL, LARGE])), data.draw(st.sampled_from([(1, 2, 4), (2, 4)])))
            for number in range(1, data.draw(st.integers(1, 8)) + 1)
        ]
        grants = granted(policy, *queued, pool=devices(8, resident(LARGE, 0, 1), free=free))
        given_away = [device for grant in grants for device in grant.devices]
        assert len(given_away) == len(set(given_away))
        assert set(given_away) <= set(free)
        for grant in grants:
            assert grant.resources == {"gpu": len(grant.devices)}
            assert grant.devices == tuple(range(grant.devices[0], grant.devices[0] + len(grant.devices)))
            assert grant.devices[0] % len(grant.devices) == 0


class TestSparPolicy:
    def test_single_action_gets_highest_degree_of_parallelism(self) -> None:
        (grant,) = granted(SparPolicy(), a_score(1, LARGE), pool=devices(8))
        assert len(grant.devices) == 4

    def test_many_actions_get_fewer_devices_each(self) -> None:
        grants = granted(SparPolicy(), *(a_score(number) for number in range(1, 33)), pool=devices(8))
        assert [len(grant.devices) for grant in grants] == [2] * 4

    def test_action_waits_for_resident_service_that_frees_before_restore_ends(self) -> None:
        pool = devices(2, resident(LARGE, 0), free=(1,))
        assert granted_beside(running(a_score(1, LARGE, (1,)), takes_s=5.0), a_score(2, LARGE, (1,)), pool=pool) == ()

    def test_action_does_not_wait_if_restore_ends_sooner(self) -> None:
        pool = devices(2, resident(LARGE, 0), free=(1,))
        (grant,) = granted_beside(running(a_score(1, LARGE, (1,)), takes_s=60.0), a_score(2, LARGE, (1,)), pool=pool)
        assert grant.devices == (1,)

    def test_long_waiting_action_is_not_overtaken_by_later_actions(self) -> None:
        old = a_score(1, LARGE, degrees=(1,), submitted=1000.0 - 400.0)
        new = [a_score(number, SMALL, degrees=(1,)) for number in range(2, 12)]
        (grant,) = granted(SparPolicy(), old, *new, pool=devices(1, resident(SMALL, 0)))
        assert grant.fence.action_id == old.id
