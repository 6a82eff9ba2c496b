"""Gangs that fit on no nodes share one search budget per round under every policy."""

from collections.abc import ItemsView

import pytest

from arl_core.capacity.gang_packing import ROUND_SEARCH_BUDGET, SEARCH_LIMIT, PackingItem, SearchBudget, pack
from arl_core.domain.model import ActionClass, Gang, QueuedAction, ResourceDemand, ResourceShape
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from support.builders import a_pool, a_snapshot, an_action, numbered

NODES, MEMBERS, GANGS = 8, 12, 60
POOLS = [a_pool(node, cpu_milli=16_000 + node) for node in range(NODES)]
FREE = {pool.node: pool.available for pool in POOLS}


class Counted(dict[str, int]):
    """Resources that count how often they are compared with free resources."""

    looks = 0

    def items(self) -> ItemsView[str, int]:
        Counted.looks += 1
        return super().items()


def needed(number: int) -> Counted:
    """Return a demand of more than half a node, different for each number."""
    return Counted(cpu_milli=9_000 + number)


def a_gang(number: int) -> QueuedAction:
    """Return a gang with more large members than nodes, so that it cannot be packed."""
    ids = range(1 + MEMBERS * number, 1 + MEMBERS * (number + 1))
    classes = [
        ActionClass(key=id, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand(needed(id))) for id in ids
    ]
    gang = Gang(numbered(10_000 + number), MEMBERS)
    head, *others = (
        an_action(id, cls=cls, submitted=0.0)._replace(gang=gang) for id, cls in zip(ids, classes, strict=True)
    )
    return head._replace(gang_members=tuple(others))


def looks_of(policy: SchedulingPolicy, gangs: int) -> int:
    snapshot = a_snapshot(queued=[a_gang(number) for number in range(gangs)], pools=POOLS)
    Counted.looks = 0
    assert policy.plan(snapshot).grants == ()
    return Counted.looks


@pytest.mark.parametrize(
    "policy",
    [FirstComeFirstServed(), ReferencePolicy(), SparPolicy(), SparPolicy(is_resizing=True)],
    ids=lambda policy: type(policy).__name__,
)
def test_unplaceable_gangs_share_one_search_budget_per_round(policy: SchedulingPolicy) -> None:
    assert looks_of(policy, GANGS) - looks_of(policy, GANGS // 2) < ROUND_SEARCH_BUDGET


class TestSearchBudget:
    def test_failed_searches_share_round_budget_and_each_gets_some(self) -> None:
        looks, demands = SearchBudget(), [PackingItem(needed(number), tuple(FREE)) for number in range(MEMBERS)]
        spent = []
        for _ in range(20):
            before = looks.remaining
            assert pack(demands, FREE, looks) is None
            spent.append(before - looks.remaining)
        assert 0 < spent[-1] < spent[0] <= SEARCH_LIMIT + NODES
        assert sum(spent) <= ROUND_SEARCH_BUDGET

    def test_gang_packed_without_backtracking_uses_no_budget(self) -> None:
        looks = SearchBudget(remaining=0)
        assert pack([PackingItem(needed(number), tuple(FREE)) for number in range(NODES)], FREE, looks) is not None
        assert looks.remaining == 0
