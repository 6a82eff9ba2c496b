"""The scaling decision of a pool: sizes, hysteresis, and the choice of nodes to drain."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from arl_engines.engine import EngineNodeState, PoolSpec
from arl_engines.scaling import (
    DEFAULT_RUN_S,
    REPLACE_AFTER_S,
    SILENT_GRACE_S,
    START_GRACE_S,
    PoolLoad,
    PoolNode,
    ScalingDecision,
    ScalingState,
    decide,
)

SPEC = PoolSpec(name="cpu", min_nodes=1, max_nodes=8, cores=4, target_s=30.0, cooldown_s=60.0)
IDLE = PoolLoad()


def a_node(number: int, **changed: Any) -> PoolNode:
    usual = {"engine_state": EngineNodeState.RUNNING, "registered": True, "alive": True, "cores": 4.0}
    return PoolNode(name=f"cpu-{number}", **usual | changed)


def nodes_up_to(count: int, **changed: Any) -> list[PoolNode]:
    return [a_node(number, **changed) for number in range(1, count + 1)]


def decided(
    nodes: Sequence[PoolNode],
    load: PoolLoad | None = IDLE,
    *,
    spec: PoolSpec = SPEC,
    wanted: int | None = None,
    now: float = 0.0,
    **state: Any,
) -> ScalingDecision:
    return decide(spec, nodes, load, ScalingState(wanted=len(nodes) if wanted is None else wanted, **state), now=now)


def test_backlog_is_divided_by_the_target_and_added_to_the_busy_cores() -> None:
    found = decided(nodes_up_to(1), PoolLoad(busy_cores=4, waiting_cores=100, waiting_core_s=240))
    assert (found.kind, found.state.wanted, found.start) == ("scale_up", 3, 3)
    assert "4 cores are busy" in found.reason
    assert "240 core-seconds wait" in found.reason


def test_actions_without_an_estimate_count_the_default_run_time() -> None:
    found = decided(nodes_up_to(1), PoolLoad(unknown_cores=24, waiting_cores=24))
    assert found.state.wanted == 24 * DEFAULT_RUN_S / SPEC.target_s / 4 == 2


def test_an_action_that_waits_longer_than_the_target_counts_with_all_its_cores() -> None:
    load = PoolLoad(busy_cores=2, waiting_cores=3, waiting_core_s=3)
    assert decided(nodes_up_to(1), replace(load, oldest_s=29)).state.wanted == 1
    assert decided(nodes_up_to(1), replace(load, oldest_s=31)).state.wanted == 2


def test_cores_outside_the_pool_take_their_part() -> None:
    load = PoolLoad(busy_cores=16, other_cores=8)
    assert decided(nodes_up_to(1), load).state.wanted == 2


def test_the_number_stays_within_the_limits() -> None:
    most = decided(nodes_up_to(1), PoolLoad(busy_cores=1000))
    assert (most.state.wanted, most.start) == (8, 8)
    assert "limited to at most 8" in most.reason
    assert decided([], IDLE, wanted=0).start == 1


def test_the_pool_shrinks_only_after_the_cooldown_and_to_the_most_that_was_needed() -> None:
    nodes, state = nodes_up_to(4), ScalingState(wanted=4)
    loads = {0.0: IDLE, 30.0: PoolLoad(busy_cores=12), 59.0: IDLE}
    for now, load in loads.items():
        found = decide(SPEC, nodes, load, state, now=now)
        assert (found.kind, found.drain) == ("hold", ())
        state = found.state
    found = decide(SPEC, nodes, IDLE, state, now=60.0)
    assert (found.kind, found.state.wanted, found.drain) == ("scale_down", 3, ("cpu-4",))


def test_the_pool_shrinks_by_at_most_a_quarter_and_not_below_what_was_needed_meanwhile() -> None:
    nodes = nodes_up_to(8)
    for peak, wanted in ((1, 6), (7, 7)):
        found = decided(nodes, lower_since=0.0, lower_peak=peak, now=60.0)
        assert (found.state.wanted, len(found.drain)) == (wanted, 8 - wanted)
    lowered = decided(nodes, wanted=3)
    assert len(lowered.drain) == 2, "a quarter drains at a time, also if the limits fell"


def test_a_need_for_all_nodes_restarts_the_cooldown() -> None:
    nodes, state = nodes_up_to(2), ScalingState(wanted=2, lower_since=0.0, lower_peak=1)
    state = decide(SPEC, nodes, PoolLoad(busy_cores=8), state, now=59.0).state
    assert decide(SPEC, nodes, IDLE, state, now=61.0).kind == "hold"


def test_a_pool_that_still_drains_shrinks_no_further() -> None:
    nodes = [*nodes_up_to(2), a_node(3, cordoned=True, running=1)]
    found = decided(nodes, wanted=2, draining=frozenset({"cpu-3"}), lower_since=0.0, lower_peak=1, now=120.0)
    assert (found.kind, found.state.wanted, found.release) == ("hold", 2, ())


def test_an_empty_node_is_drained_before_a_busy_one_and_a_newer_before_an_older() -> None:
    nodes = [a_node(1, environments=1), a_node(2), a_node(3), a_node(4, running=1)]
    assert decided(nodes, wanted=3, lower_since=0.0).drain == ("cpu-3",)
    busy = [a_node(1, environments=2), a_node(2, running=3), a_node(3, running=1)]
    assert decided(busy, PoolLoad(busy_cores=1), wanted=2).drain == ("cpu-3",)


def test_a_drained_node_is_released_once_it_is_cordoned_and_empty() -> None:
    for node, released in (
        (a_node(2, cordoned=False), ()),
        (a_node(2, cordoned=True, running=1), ()),
        (a_node(2, cordoned=True, environments=1), ()),
        (a_node(2, cordoned=True), ("cpu-2",)),
        (a_node(2, registered=False, alive=False), ("cpu-2",)),
    ):
        found = decided([a_node(1), node], wanted=1, draining=frozenset({"cpu-2"}))
        assert found.release == released
        assert found.start == 2 - len(released)


def test_a_cordon_that_was_not_written_is_repeated() -> None:
    assert decided([a_node(1), a_node(2)], wanted=1, draining=frozenset({"cpu-2"})).drain == ("cpu-2",)


def test_draining_nodes_are_reopened_before_new_ones_start() -> None:
    nodes = [a_node(1), a_node(2, cordoned=True, running=1), a_node(3, cordoned=True)]
    found = decided(nodes, PoolLoad(busy_cores=16), wanted=1, draining=frozenset({"cpu-2", "cpu-3"}))
    assert found.reopen == ("cpu-2", "cpu-3")
    assert (found.start, found.release, found.state.draining) == (4, (), frozenset())


def test_a_node_that_an_administrator_cordoned_is_replaced_and_left_alone() -> None:
    found = decided([a_node(1, cordoned=True)], wanted=1)
    assert (found.start, found.reopen, found.drain, found.release) == (2, (), (), ())


def test_a_node_that_never_registers_is_replaced_and_then_stopped() -> None:
    absent = a_node(1, registered=False, alive=False)
    state = decided([absent], wanted=1, now=0.0).state
    assert decide(SPEC, [absent], IDLE, state, now=START_GRACE_S - 1).start == 1
    assert decide(SPEC, [absent], IDLE, state, now=START_GRACE_S).start == 2
    late = decide(SPEC, [absent, a_node(2)], IDLE, state, now=REPLACE_AFTER_S)
    assert (late.release, late.start) == (("cpu-1",), 1)


def test_a_silent_node_is_replaced_after_its_grace() -> None:
    silent = a_node(1, alive=False)
    state = decided([silent], wanted=1, now=0.0).state
    assert decide(SPEC, [silent], IDLE, state, now=SILENT_GRACE_S - 1).start == 1
    assert decide(SPEC, [silent], IDLE, state, now=SILENT_GRACE_S).start == 2
    back = decide(SPEC, [a_node(1)], IDLE, state, now=SILENT_GRACE_S)
    assert back.state.absent_since == {}


def test_lost_nodes_without_a_process_are_removed() -> None:
    lost = a_node(2, engine_state=None, alive=False)
    stopping = a_node(3, engine_state=EngineNodeState.STOPPING, alive=False)
    assert decided([a_node(1), lost, stopping], wanted=1).remove == ("cpu-2",)


def test_an_unknown_backlog_holds_the_number() -> None:
    found = decided(nodes_up_to(3), None, lower_since=0.0, now=1000.0)
    assert (found.kind, found.start, found.drain, found.state.lower_since) == ("hold", 3, (), None)
    unknown = decided([a_node(1, cores=0.0)], PoolLoad(busy_cores=9), spec=replace(SPEC, cores=None))
    assert (unknown.kind, unknown.start) == ("hold", 1)


def test_a_fixed_pool_starts_missing_nodes() -> None:
    fixed = PoolSpec(name="cpu", kind="gpu", min_nodes=2, max_nodes=2)
    assert decided([a_node(1)], None, spec=fixed, wanted=1).start == 2


ANY_NODE = st.builds(
    PoolNode,
    name=st.integers(1, 12).map("cpu-{}".format),
    engine_state=st.sampled_from([None, *EngineNodeState]),
    registered=st.booleans(),
    alive=st.booleans(),
    cordoned=st.booleans(),
    running=st.integers(0, 2),
    environments=st.integers(0, 2),
    cores=st.just(4.0),
)
ANY_LOAD = st.builds(
    PoolLoad,
    busy_cores=st.floats(0, 100),
    waiting_core_s=st.floats(0, 5000),
    waiting_cores=st.floats(0, 500),
    oldest_s=st.floats(0, 100),
    other_cores=st.floats(0, 50),
)


@given(
    nodes=st.lists(ANY_NODE, max_size=10, unique_by=lambda node: node.name),
    load=st.none() | ANY_LOAD,
    wanted=st.integers(0, 12),
    draining=st.frozensets(st.integers(1, 12).map("cpu-{}".format), max_size=4),
    now=st.floats(0, 1000),
)
def test_every_decision_respects_limits_and_work(
    nodes: list[PoolNode], load: PoolLoad | None, wanted: int, draining: frozenset[str], now: float
) -> None:
    state = ScalingState(wanted=wanted, draining=draining, lower_since=0.0)
    found = decide(SPEC, nodes, load, state, now=now)
    held = {node.name: node for node in nodes if node.is_held}
    assert SPEC.min_nodes <= found.state.wanted <= SPEC.max_nodes
    assert found.start <= max(SPEC.max_nodes, len(held))
    assert found.state.draining <= held.keys()
    assert {*found.release, *found.drain} <= held.keys()
    assert all(held[name].is_empty for name in found.release)  # nothing here is silent for long
    assert not set(found.reopen) & found.state.draining
    chosen = found.state.draining - draining
    if any(not held[name].is_empty for name in chosen):
        left = [node for node in held.values() if node.name not in found.state.draining and not node.cordoned]
        assert not any(node.is_empty and node.alive for node in left)


@given(load=ANY_LOAD, count=st.integers(1, 8))
def test_a_constant_load_leads_to_a_constant_number(load: PoolLoad, count: int) -> None:
    """The nodes follow the decisions; after enough time, nothing changes any more."""
    state, names, last = ScalingState(wanted=count), [f"cpu-{number}" for number in range(count)], count
    sizes: list[int] = []
    for second in range(0, 2000, 10):
        nodes = [PoolNode(name=name, engine_state=EngineNodeState.RUNNING, registered=True, alive=True, cores=4.0,
                          cordoned=name in state.draining) for name in names]  # fmt: skip
        found = decide(SPEC, nodes, load, state, now=float(second))
        state = found.state
        names = [name for name in names if name not in found.release]
        while len(names) < found.start:
            names.append(f"cpu-{last}")
            last += 1
        sizes.append(len(names))
    assert len(set(sizes[150:])) == 1
    falls = sum(later < earlier for earlier, later in pairwise(sizes))
    rises = sum(later > earlier for earlier, later in pairwise(sizes))
    assert not (falls and rises)


def test_node_that_waits_for_a_machine_is_neither_doubled_nor_stopped() -> None:
    waiting = PoolNode(name="cpu-1", engine_state=EngineNodeState.WAITING)
    state = ScalingState(wanted=1)
    for now in (0.0, START_GRACE_S, 10 * REPLACE_AFTER_S):
        found = decide(SPEC, [waiting], None, state, now=now)
        assert (found.start, found.release) == (1, ())
        state = found.state
    started = replace(waiting, engine_state=EngineNodeState.STARTING)
    found = decide(SPEC, [started], None, state, now=10 * REPLACE_AFTER_S)
    assert (found.start, found.release) == (1, ()), "its time to register begins now"
    assert decide(SPEC, [started], None, found.state, now=11 * REPLACE_AFTER_S).release == ("cpu-1",)
