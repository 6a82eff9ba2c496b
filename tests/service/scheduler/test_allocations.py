"""Test the leader's allocation of a running action whose resources change."""

import pytest

from arl_core.capacity.ledger import ResourceLedger
from arl_core.domain.model import Fence
from arl_core.durations.curves import CurveCache
from arl_core.policies.policy import FirstComeFirstServed
from arl_scheduler.index.allocations import Allocation, AllocationTable
from support.builders import a_class, numbered

FENCE = Fence(numbered(1), 1)
CLS = a_class(cpu_milli=1000)
"""An unknown action takes one second on one core, and 90 % of it runs in parallel."""


def holding(ledger: ResourceLedger) -> AllocationTable:
    """Return a table with one running action: one of four cores, granted and started at 100 s."""
    ledger.set_capacity(1, {"cpu_milli": 4000})
    holds = AllocationTable(FirstComeFirstServed(), ledger, CurveCache())
    holds.add(Allocation(FENCE, CLS, 1, {"cpu_milli": 1000}, None, 1, 100.0, 100.0))
    return holds


def test_resized_allocation_counts_with_its_new_resources() -> None:
    holds = holding(ledger := ResourceLedger())
    holds.apply_resize(FENCE, {"cpu_milli": 3000}, seq=1, now=100.5)
    assert ledger.available(1) == {"cpu_milli": 1000}
    holds.remove(FENCE.action_id)
    assert ledger.available(1) == {"cpu_milli": 4000}


def test_resize_of_another_attempt_changes_nothing() -> None:
    holds = holding(ledger := ResourceLedger())
    holds.apply_resize(Fence(FENCE.action_id, 2), {"cpu_milli": 3000}, seq=1, now=100.5)
    assert ledger.available(1) == {"cpu_milli": 3000}


def test_snapshot_shows_remaining_work_and_time_of_the_last_resize() -> None:
    holds = holding(ResourceLedger())
    holds.apply_resize(FENCE, {"cpu_milli": 2000}, seq=1, now=100.5)
    seen = holds.running.on_node(1)[FENCE.action_id]
    assert (seen.resources, seen.allocated_since, seen.remaining_work) == (
        {"cpu_milli": 2000},
        100.5,
        pytest.approx(0.5),
    )


def test_mean_cores_are_weighted_by_time() -> None:
    holds = holding(ResourceLedger())
    holds.apply_resize(FENCE, {"cpu_milli": 3000}, seq=1, now=104.0)
    hold = holds.get(FENCE.action_id)
    assert hold is not None
    assert hold.mean_milli(until=108.0) == 2000


def test_mean_resources_of_a_task_are_weighted_by_time() -> None:
    holds = holding(ResourceLedger())
    holds.apply_resize(FENCE, {"cpu_milli": 3000, "memory_mib": 10}, seq=1, now=104.0)
    hold = holds.get(FENCE.action_id)
    assert hold is not None
    assert hold.mean_resources(until=108.0) == {"cpu_milli": 2000, "memory_mib": 10}


@pytest.mark.parametrize(("home", "comes_back"), [(None, {"memory_mib": 10}), ((1, "x"), {})])
def test_only_memory_outside_environments_is_freed_at_the_end(
    home: tuple[int, str] | None, comes_back: dict[str, int]
) -> None:
    holds = holding(ResourceLedger())
    amounts = {"cpu_milli": 1000, "memory_mib": 10}
    holds.add(Allocation(Fence(numbered(2), 1), CLS, 1, amounts, home, 1, 100.0, 100.0))
    assert holds.running.outside_environments(1) == comes_back
    holds.remove(numbered(2))
    assert sum(holds.running.outside_environments(1).values()) == 0
