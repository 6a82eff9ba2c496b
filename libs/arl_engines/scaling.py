"""The scaling decision of a pool: values in, values out; no clock and no I/O.

The controller calls `decide` once a second with what it observed and with the state of the last decision.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from arl_engines.engine import EngineNodeState, PoolSpec

__all__ = [
    "DEFAULT_RUN_S",
    "PoolLoad",
    "PoolNode",
    "ScalingDecision",
    "ScalingState",
    "cores_per_node",
    "decide",
]

DEFAULT_RUN_S = 10.0
"""Assumed run time, in seconds, of actions without an estimate."""
START_GRACE_S = 120.0
"""Seconds that a new node has to register before another one is started in its place."""
SILENT_GRACE_S = 30.0
"""Seconds without a lease after which a registered node no longer counts. A restarted node is back earlier."""
REPLACE_AFTER_S = 300.0
"""Seconds without a lease after which the engine stops the node. Its environments are lost by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """A node of the pool, as the engine and the node's lease show it."""

    name: str
    engine_state: EngineNodeState | None = None
    """None if the engine does not have the node."""
    registered: bool = False
    alive: bool = False
    """The node's lease is valid."""
    cordoned: bool = False
    running: int = 0
    environments: int = 0
    cores: float = 0.0

    @property
    def is_held(self) -> bool:
        """Return True if the engine has the node and was not asked to stop it."""
        return self.engine_state is not None and self.engine_state is not EngineNodeState.STOPPING

    @property
    def is_waiting(self) -> bool:
        """Return True if the engine waits for a machine for the node."""
        return self.engine_state is EngineNodeState.WAITING

    @property
    def is_empty(self) -> bool:
        """Return True if no action and no environment is on the node."""
        return not self.running and not self.environments


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """The load of the pool's kind of node. Cores are the minimum cores of actions."""

    busy_cores: float = 0.0
    waiting_cores: float = 0.0
    waiting_core_s: float = 0.0
    """Core-seconds of waiting actions with an estimate."""
    unknown_cores: float = 0.0
    """Cores of waiting actions without an estimate. They count `DEFAULT_RUN_S` seconds each."""
    oldest_s: float = 0.0
    """Seconds that the oldest action has waited."""
    other_cores: float = 0.0
    """Cores of nodes of this kind outside the pool, which take their part of the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """The state between decisions. `wanted` and `draining` are also in the pool's row, for the next controller."""

    wanted: int
    draining: frozenset[str] = frozenset()
    """Nodes that this pool drains. Nodes that an administrator cordoned are not among them."""
    lower_since: float | None = None
    """Time since which fewer nodes than wanted have been enough."""
    lower_peak: int = 0
    """The most nodes that were needed since then."""
    absent_since: Mapping[str, float] = field(default_factory=dict)
    """Time since which a node that the engine has is without a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """Next steps of the controller."""

    kind: Literal["hold", "scale_up", "scale_down"]
    reason: str
    start: int
    """Absolute number of nodes for `ClusterEngine.ensure`, after the releases."""
    reopen: tuple[str, ...]
    """Nodes that are no longer drained."""
    drain: tuple[str, ...]
    """Nodes to cordon and drain; it includes earlier ones whose cordon is not visible yet."""
    release: tuple[str, ...]
    """Nodes for `ClusterEngine.release`."""
    remove: tuple[str, ...]
    """Lost nodes that the engine no longer has."""
    state: ScalingState


def decide(
    spec: PoolSpec, nodes: Sequence[PoolNode], load: PoolLoad | None, state: ScalingState, *, now: float
) -> ScalingDecision:
    """Decide how many nodes the pool wants, and which nodes start, drain, stop or are removed.

    Args:
        spec: The pool and its limits.
        nodes: All nodes of the pool that the engine has or that are registered.
        load: The load; None if it is unknown. The number of nodes is then held.
        state: The state of the last decision.
        now: Monotonic time in seconds.
    """
    held = [node for node in nodes if node.is_held]
    absent = {
        node.name: state.absent_since.get(node.name, now) for node in held if not node.alive and not node.is_waiting
    }
    state = replace(state, draining=state.draining & {node.name for node in held}, absent_since=absent)
    kind, reason, state = _resize(spec, nodes, load, state, now=now)
    usable = [node for node in held if node.name not in state.draining and _counts(node, absent, now)]
    missing = state.wanted - len(usable)
    reopen = _most_used(held, state.draining, count=missing)
    victims = _victims(usable, state, count=-missing)
    draining = (state.draining | set(victims)) - set(reopen)
    release = tuple(node.name for node in held if _may_stop(node, draining, absent, now=now))
    remaining = len(held) - len(release)
    fresh = max(0, min(missing - len(reopen), spec.max_nodes - remaining))
    return ScalingDecision(
        kind=kind,
        reason=reason,
        start=remaining + fresh,
        reopen=reopen,
        drain=tuple(node.name for node in held if node.name in draining and node.registered and not node.cordoned),
        release=release,
        remove=tuple(node.name for node in nodes if node.engine_state is None and node.registered and not node.alive),
        state=replace(state, draining=draining),
    )


def cores_per_node(spec: PoolSpec, nodes: Sequence[PoolNode]) -> float | None:
    """Return the cores of a node of the pool: as given, else the most of its nodes. None if no node has registered."""
    return float(spec.cores) if spec.cores else max((node.cores for node in nodes if node.cores), default=None)


def _resize(
    spec: PoolSpec, nodes: Sequence[PoolNode], load: PoolLoad | None, state: ScalingState, *, now: float
) -> tuple[Literal["hold", "scale_up", "scale_down"], str, ScalingState]:
    """Return the kind of decision, its reason in words, and the state with the new number of wanted nodes."""
    current = min(max(state.wanted, spec.min_nodes), spec.max_nodes)
    state = replace(state, wanted=current)
    if spec.is_fixed:
        return "hold", f"the pool has a fixed size of {spec.max_nodes}", replace(state, lower_since=None)
    cores = cores_per_node(spec, nodes)
    if load is None or cores is None:
        unknown = "the backlog is unknown" if load is None else "no node has registered, so its cores are unknown"
        return "hold", unknown, replace(state, lower_since=None)
    needed, why = _needed(spec, load, cores)
    if needed > current:
        return "scale_up", why, replace(state, wanted=needed, lower_since=None)
    if needed == current:
        return "hold", why, replace(state, lower_since=None)
    if state.lower_since is None:
        state = replace(state, lower_since=now, lower_peak=needed)
    state = replace(state, lower_peak=max(state.lower_peak, needed))
    lower_s = now - (state.lower_since if state.lower_since is not None else now)
    if lower_s < spec.cooldown_s:
        return "hold", f"{why}; shrinks if this holds for {spec.cooldown_s:g} s", state
    if state.draining:
        return "hold", f"{why}; {len(state.draining)} nodes are still draining", state
    lower = max(state.lower_peak, current - max(1, current // 4))
    return "scale_down", why, replace(state, wanted=lower, lower_since=now, lower_peak=needed)


def _needed(spec: PoolSpec, load: PoolLoad, cores: float) -> tuple[int, str]:
    """Return the number of nodes within the limits, and the reason."""
    work_core_s = load.waiting_core_s + DEFAULT_RUN_S * load.unknown_cores
    waiting = work_core_s / spec.target_s
    words = f"{work_core_s:.0f} core-seconds wait (target {spec.target_s:g} s)"
    if load.oldest_s > spec.target_s and load.waiting_cores > waiting:
        # The oldest action may need more free cores at once than the mean load suggests.
        waiting = load.waiting_cores
        words = f"an action has waited {load.oldest_s:.0f} s; {waiting:g} cores wait"
    demand = max(0.0, load.busy_cores + waiting - load.other_cores)
    nodes = math.ceil(demand / cores - 1e-9)
    needed = min(max(nodes, spec.min_nodes), spec.max_nodes)
    others = f", {load.other_cores:g} cores outside the pool help" if load.other_cores else ""
    limit = "" if needed == nodes else f", limited to at {'least' if needed > nodes else 'most'} {needed}"
    return needed, f"{load.busy_cores:g} cores are busy, {words}{others}: needs {nodes} nodes of {cores:g} cores{limit}"


def _counts(node: PoolNode, absent: Mapping[str, float], now: float) -> bool:
    """Return True if the node serves new actions, or is expected to do so soon."""
    if node.cordoned:
        return False
    grace_s = SILENT_GRACE_S if node.registered else START_GRACE_S
    return node.alive or node.is_waiting or now - absent[node.name] < grace_s


def _most_used(held: Sequence[PoolNode], draining: frozenset[str], *, count: int) -> tuple[str, ...]:
    """Return up to `count` live nodes that are being drained, those with the most work first."""
    there = [node for node in held if node.name in draining and node.alive]
    there.sort(key=lambda node: (-node.running - node.environments, node.name))
    return tuple(node.name for node in there[: max(0, count)])


def _victims(usable: Sequence[PoolNode], state: ScalingState, *, count: int) -> tuple[str, ...]:
    """Return the nodes to drain: empty ones first, and then those with the fewest environments and actions.

    Nodes that never registered are the first of the empty ones. At most a quarter of the nodes is drained at a time,
    and at least one.
    """
    room = max(1, len(usable) // 4) - len(state.draining)
    chosen = sorted(
        usable,
        key=lambda node: (node.environments, node.running, node.registered, _newest_first(node)),
    )
    return tuple(node.name for node in chosen[: max(0, min(count, room))])


def _newest_first(node: PoolNode) -> tuple[int, str]:
    number = node.name.rpartition("-")[2]
    return (-int(number) if number.isdecimal() else 0, node.name)


def _may_stop(node: PoolNode, draining: frozenset[str], absent: Mapping[str, float], *, now: float) -> bool:
    """Return True if nothing would be lost by stopping this node, or if it has been silent for too long."""
    if now - absent.get(node.name, now) >= REPLACE_AFTER_S:
        return True
    return node.name in draining and node.is_empty and (node.cordoned or not node.registered)
