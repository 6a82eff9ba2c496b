"""The leader's allocation of a running action whose resources change."""

import pytest

from arl_core.capacity.ledger import ResourceLedger
from arl_core.domain.model import Fence
from arl_core.durations.curves import CurveCache
from arl_core.policies.policy import FirstComeFirstServed
from arl_scheduler.index.allocations import Allocation, AllocationTable
from support.builders import a_class, numbered

FENCE = Fence(numbered(1), 1)
CLS = a_class(cpu_milli=1000)
"""A second at one core, by nothing known, and nine tenths of it in parallel."""


def holding(ledger: ResourceLedger) -> AllocationTable:
    """An action with one of four cores, granted and started at 100."""
    ledger.set_capacity(1, {"cpu_milli": 4000})
    holds = AllocationTable(FirstComeFirstServed(), ledger, CurveCache())
    holds.add(Allocation(FENCE, CLS, 1, {"cpu_milli": 1000}, None, 1, 100.0, 100.0))
    return holds


def test_it_counts_as_much_as_its_row_says() -> None:
    holds = holding(ledger := ResourceLedger())
    holds.apply_resize(FENCE, {"cpu_milli": 3000}, seq=1, now=100.5)
    assert ledger.available(1) == {"cpu_milli": 1000}
    holds.remove(FENCE.action_id)
    assert ledger.available(1) == {"cpu_milli": 4000}


def test_a_resize_of_another_attempt_changes_nothing() -> None:
    holds = holding(ledger := ResourceLedger())
    holds.apply_resize(Fence(FENCE.action_id, 2), {"cpu_milli": 3000}, seq=1, now=100.5)
    assert ledger.available(1) == {"cpu_milli": 3000}


def test_rounds_see_what_is_left_and_since_when_it_has_what_it_has() -> None:
    holds = holding(ResourceLedger())
    holds.apply_resize(FENCE, {"cpu_milli": 2000}, seq=1, now=100.5)
    seen = holds.running.on_node(1)[FENCE.action_id]
    assert (seen.resources, seen.allocated_since, seen.remaining_work) == (
        {"cpu_milli": 2000},
        100.5,
        pytest.approx(0.5),
    )


def test_it_had_on_average_what_it_had_for_how_long() -> None:
    holds = holding(ResourceLedger())
    holds.apply_resize(FENCE, {"cpu_milli": 3000}, seq=1, now=104.0)
    hold = holds.get(FENCE.action_id)
    assert hold is not None
    assert hold.mean_milli(until=108.0) == 2000


def test_what_a_task_pays_for_is_what_its_action_had_on_average() -> None:
    holds = holding(ResourceLedger())
    holds.apply_resize(FENCE, {"cpu_milli": 3000, "memory_mib": 10}, seq=1, now=104.0)
    hold = holds.get(FENCE.action_id)
    assert hold is not None
    assert hold.mean_resources(until=108.0) == {"cpu_milli": 2000, "memory_mib": 10}


@pytest.mark.parametrize(("home", "comes_back"), [(None, {"memory_mib": 10}), ((1, "x"), {})])
def test_rounds_see_whose_memory_comes_back(home: tuple[int, str] | None, comes_back: dict[str, int]) -> None:
    holds = holding(ResourceLedger())
    amounts = {"cpu_milli": 1000, "memory_mib": 10}
    holds.add(Allocation(Fence(numbered(2), 1), CLS, 1, amounts, home, 1, 100.0, 100.0))
    assert holds.running.outside_environments(1) == comes_back
    holds.remove(numbered(2))
    assert sum(holds.running.outside_environments(1).values()) == 0
