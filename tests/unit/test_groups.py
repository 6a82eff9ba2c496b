from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl_core.curves import Curves
from arl_core.elasticity import Amdahl
from arl_core.fence import Fence
from arl_core.model import ActionClass, Demand, Elastic, Grant, Pool, Resident, Running, Service, Shape, Waiting
from arl_core.plan import FirstComeFirstServed, Policy
from arl_core.reference import Reference
from arl_core.spar import Spar
from support.builders import a_pool, a_snapshot, an_action

SMALL = Service("small", fixed_s=0.5, device_s=1.0)
LARGE = Service("large", fixed_s=0.5, device_s=10.0)
NOW = 1000.0
POLICIES: tuple[Policy, ...] = (FirstComeFirstServed(), Reference(), Spar())


def a_score(
    number: int, service: Service = SMALL, degrees: tuple[int, ...] = (1, 2, 4), submitted: float = 999.0
) -> Waiting:
    elastic = Elastic("gpu", degrees, Amdahl(0.9))
    key = {"small": 1, "large": 2}[service.name]
    cls = ActionClass(
        key=key, kind="score", shape=Shape.GROUP, demand=Demand({"gpu": degrees[0]}, elastic), service=service
    )
    return an_action(number, cls=cls, submitted=submitted)


def devices(count: int = 8, *resident: Resident, free: tuple[int, ...] | None = None) -> Pool:
    there = tuple(range(count)) if free is None else free
    pool = a_pool(shape=Shape.GROUP, gpu=count, free={"gpu": len(there)}, devices=there)
    return replace(pool, resident=resident)


def resident(service: Service, *on: int, used_at: float = 990.0) -> Resident:
    return Resident(service, on, used_at)


def granted(policy: Policy, *queued: Waiting, pool: Pool) -> tuple[Grant, ...]:
    return policy.plan(a_snapshot(queued=queued, pools=[pool])).grants


@dataclass(frozen=True)
class Constant:
    """Every action takes this long."""

    s: float

    def seconds(self, cls: ActionClass, amount: int) -> float:
        return self.s


def running(action: Waiting, *, takes_s: float) -> tuple[Running, Curves]:
    """On device 0, since just now."""
    curves = Curves(Constant(takes_s))
    curves.now = NOW
    fence = Fence(action.id, 1)
    return Running(
        fence=fence, cls=action.cls, node=1, amounts={"gpu": 1}, granted=NOW, task=1, started=NOW, since=NOW
    ), curves


def granted_beside(other: tuple[Running, Curves], action: Waiting, *, pool: Pool) -> tuple[Grant, ...]:
    each, curves = other
    return Spar().plan(replace(a_snapshot(queued=[action], pools=[pool], running=[each]), curves=curves)).grants


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
class TestEveryPolicy:
    def test_a_group_that_has_the_service_is_preferred(self, policy: Policy) -> None:
        pool = devices(8, resident(LARGE, 0), resident(SMALL, 4, 5, 6, 7), resident(SMALL, 3))
        (grant,) = granted(policy, a_score(1, degrees=(1,)), pool=pool)
        assert grant.devices == (3,)

    def test_the_service_that_was_unused_longest_is_evicted(self, policy: Policy) -> None:
        pool = devices(2, resident(LARGE, 0, used_at=999.0), resident(LARGE, 1, used_at=100.0))
        (grant,) = granted(policy, a_score(1, degrees=(1,)), pool=pool)
        assert grant.devices == (1,)

    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_groups_are_aligned_free_and_disjoint(self, policy: Policy, data: st.DataObject) -> None:
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
            assert grant.amounts == {"gpu": len(grant.devices)}
            assert grant.devices == tuple(range(grant.devices[0], grant.devices[0] + len(grant.devices)))
            assert grant.devices[0] % len(grant.devices) == 0


class TestPriced:
    def test_a_single_action_gets_as_many_devices_as_help_it(self) -> None:
        (grant,) = granted(Spar(), a_score(1, LARGE), pool=devices(8))
        assert len(grant.devices) == 4

    def test_many_actions_get_fewer_devices_each(self) -> None:
        grants = granted(Spar(), *(a_score(number) for number in range(1, 33)), pool=devices(8))
        assert [len(grant.devices) for grant in grants] == [2] * 4

    def test_an_action_waits_for_a_group_that_has_its_service_and_frees_before_a_restore_would_end(self) -> None:
        pool = devices(2, resident(LARGE, 0), free=(1,))
        assert granted_beside(running(a_score(1, LARGE, (1,)), takes_s=5.0), a_score(2, LARGE, (1,)), pool=pool) == ()

    def test_an_action_does_not_wait_where_a_restore_ends_sooner(self) -> None:
        pool = devices(2, resident(LARGE, 0), free=(1,))
        (grant,) = granted_beside(running(a_score(1, LARGE, (1,)), takes_s=60.0), a_score(2, LARGE, (1,)), pool=pool)
        assert grant.devices == (1,)

    def test_nothing_is_overtaken_by_what_came_long_after(self) -> None:
        old = a_score(1, LARGE, degrees=(1,), submitted=1000.0 - 400.0)
        new = [a_score(number, SMALL, degrees=(1,)) for number in range(2, 12)]
        (grant,) = granted(Spar(), old, *new, pool=devices(1, resident(SMALL, 0)))
        assert grant.fence.action_id == old.id
