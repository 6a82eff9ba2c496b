"""From what the public API and the engine report to the input of the scaling decision."""

from collections.abc import Iterable, Sequence

from arl_engines.engine import EngineNode, PoolSpec
from arl_engines.scaling import PoolLoad, PoolNode
from arl_wire.admin.capacity import BacklogResponse
from arl_wire.admin.nodes import NodeInfo
from arl_wire.admin.pools import PoolInfo

__all__ = ["is_member", "to_pool_load", "to_pool_nodes"]


def is_member(node: NodeInfo, pool: str) -> bool:
    """Return True if an engine started this node for the pool. Engines name nodes POOL-SUFFIX.

    Nodes that a user joined to the pool have other names. They are neither drained nor removed.
    """
    prefix = f"{pool}-"
    return node.pool == pool and node.name.startswith(prefix) and "-" not in node.name[len(prefix) :]


def to_pool_nodes(spec: PoolSpec, engine_nodes: Iterable[EngineNode], registered: Iterable[NodeInfo]) -> list[PoolNode]:
    """Return the nodes of a pool that the engine has or that are registered, by name."""
    by_name = {node.name: node for node in engine_nodes if node.pool == spec.name}
    infos = {info.name: info for info in registered if info.name in by_name or is_member(info, spec.name)}
    found: list[PoolNode] = []
    for name in sorted(by_name.keys() | infos.keys()):
        state = by_name[name].state if name in by_name else None
        info = infos.get(name)
        if info is None:
            found.append(PoolNode(name=name, engine_state=state))
            continue
        found.append(
            PoolNode(
                name=name,
                engine_state=state,
                registered=True,
                alive=info.alive,
                cordoned=info.cordoned,
                running=info.running,
                environments=info.environments,
                cores=info.capacity.get("cpu_milli", 0) / 1000,
            )
        )
    return found


def to_pool_load(
    spec: PoolSpec,
    members: Sequence[PoolNode],
    registered: Iterable[NodeInfo],
    backlog: BacklogResponse | None,
    pools: Iterable[PoolInfo],
) -> PoolLoad | None:
    """Return the load of the pool's kind of node; None if it is unknown.

    Pools of one kind share its backlog in the order of their names: a pool counts on the wanted nodes of earlier pools
    and on the minimum of later ones, so that exactly one of them grows.
    """
    found = next((load for load in backlog.items if load.kind == spec.kind), None) if backlog is not None else None
    if found is None:
        return None
    others = [pool for pool in pools if pool.controlled and pool.kind == spec.kind and pool.name != spec.name]
    own = {node.name for node in members}
    outside = [
        info
        for info in registered
        if info.kind == spec.kind and info.alive and not info.cordoned and info.name not in own
    ]
    unpooled = [info for info in outside if not any(is_member(info, pool.name) for pool in others)]
    cores = sum(info.capacity.get("cpu_milli", 0) for info in unpooled) / 1000
    for pool in others:
        nodes = pool.wanted if pool.name < spec.name else pool.min_nodes
        cores += nodes * (pool.cores_per_node or 0.0)
    return PoolLoad(
        busy_cores=found.busy_cores,
        waiting_cores=found.waiting_cores,
        waiting_core_s=found.waiting_core_s,
        unknown_cores=found.unknown_cores,
        oldest_s=found.oldest_s or 0.0,
        other_cores=cores,
    )
