"""The input of the scaling decision, from the public API and the engine."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from arl_engines.engine import EngineNode, EngineNodeState, PoolSpec
from arl_engines.observation import is_member, to_pool_load, to_pool_nodes
from arl_wire.admin.capacity import BacklogResponse, NodeKindBacklog
from arl_wire.admin.nodes import NodeInfo
from arl_wire.admin.pools import PoolInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = PoolSpec(name="b", max_nodes=4, cores=2)
LOAD = NodeKindBacklog(
    kind="cpu", waiting=1, waiting_cores=1, waiting_core_s=5, unknown_cores=2, pinned=0, running=3, busy_cores=4
)


def a_registered(name: str, **changed: Any) -> NodeInfo:
    usual = {
        "kind": "cpu",
        "pool": name.rpartition("-")[0] or "default",
        "driver": "simulated",
        "epoch": UUID(int=1),
        "capacity": {"cpu_milli": 2000},
        "registered_at": NOW,
        "last_heartbeat_at": NOW,
        "alive": True,
        "cordoned": False,
        "running": 0,
        "environments": 0,
        "enforced": [],
    }
    return NodeInfo(name=name, **usual | changed)


def a_listed_pool(name: str, **changed: Any) -> PoolInfo:
    usual = {
        "kind": "cpu",
        "engine": "local",
        "min_nodes": 1,
        "max_nodes": 4,
        "cores_per_node": 2.0,
        "wanted": 3,
        "present": 3,
        "ready": 3,
        "draining": [],
        "decision": "hold",
        "reason": "",
        "decided_at": NOW,
        "updated_at": NOW,
        "controller": "c",
        "controlled": True,
    }
    return PoolInfo(name=name, **usual | changed)


def an_engine_node(name: str, pool: str = "b") -> EngineNode:
    return EngineNode(name=name, pool=pool, state=EngineNodeState.RUNNING, engine_id="1")


def other_cores(registered: list[NodeInfo], pools: list[PoolInfo]) -> float:
    members = to_pool_nodes(SPEC, [], registered)
    load = to_pool_load(SPEC, members, registered, BacklogResponse(items=[LOAD]), pools)
    assert load is not None
    return load.other_cores


def test_nodes_of_the_engine_and_lost_ones_of_the_pool_are_members() -> None:
    engine = [an_engine_node("b-1"), an_engine_node("b-2"), an_engine_node("a-1", pool="a")]
    found = to_pool_nodes(SPEC, engine, [a_registered("b-1", running=2), a_registered("b-3", alive=False)])
    assert [(node.name, node.engine_state is not None, node.registered) for node in found] == [
        ("b-1", True, True),
        ("b-2", True, False),
        ("b-3", False, True),
    ]
    assert (found[0].running, found[0].cores) == (2, 2.0)


def test_names_of_a_pool_do_not_match_those_of_a_longer_name() -> None:
    assert is_member(a_registered("cpu-1"), "cpu")
    assert not is_member(a_registered("cpu-big-1"), "cpu")
    assert is_member(a_registered("cpu-big-1"), "cpu-big")


def test_nodes_that_a_user_joined_to_the_pool_are_no_members() -> None:
    assert not is_member(a_registered("workstation", pool="cpu"), "cpu")
    assert not is_member(a_registered("cpu-1", pool="default"), "cpu")


def test_load_is_that_of_the_kind_and_unknown_without_a_backlog() -> None:
    load = to_pool_load(SPEC, [], [], BacklogResponse(items=[LOAD]), [])
    assert load is not None
    assert (load.busy_cores, load.waiting_core_s, load.unknown_cores, load.oldest_s) == (4, 5, 2, 0)
    assert to_pool_load(SPEC, [], [], None, []) is None


def test_live_open_nodes_outside_the_pool_take_part() -> None:
    nodes = [
        a_registered("host"),
        a_registered("lost", alive=False),
        a_registered("closed", cordoned=True),
        a_registered("gpu", kind="gpu"),
        a_registered("b-1"),
    ]
    assert other_cores(nodes, []) == 2.0


def test_earlier_pools_count_with_their_wanted_nodes_and_later_ones_with_their_minimum() -> None:
    nodes = [a_registered("a-1"), a_registered("c-1"), a_registered("c-2")]
    assert other_cores(nodes, [a_listed_pool("a"), a_listed_pool("b"), a_listed_pool("c")]) == 3 * 2 + 1 * 2
    assert other_cores(nodes, [a_listed_pool("a", controlled=False)]) == 3 * 2.0
