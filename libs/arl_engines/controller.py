"""The controller of pools: it compares wanted and present nodes once a second, and acts on the difference.

A pool belongs to one controller at a time, by a lease in its row. The controller publishes each decision before it
acts, so that its successor knows which nodes are being drained. It acts only while its lease is surely valid.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from arl_engines.engine import ClusterEngine, ClusterEngineError, EngineNode, PoolSpec
from arl_engines.observation import to_pool_load, to_pool_nodes
from arl_engines.scaling import PoolNode, ScalingDecision, ScalingState, cores_per_node, decide
from arl_tangram.async_client import AsyncTangram
from arl_wire.admin.capacity import BacklogResponse
from arl_wire.admin.nodes import NodeInfo
from arl_wire.admin.pools import POOL_LEASE_S, PoolInfo, PublishPoolRequest, ScalingDecisionName
from arl_wire.errors import Conflict, Forbidden, NotFound, TangramError, Unauthenticated, Unavailable

__all__ = ["PoolController"]

INTERVAL_S = 1.0
PUBLISH_EVERY_S = 3.0
"""Seconds between publications of an unchanged state; they renew the lease."""
SAFE_LEASE_S = 0.8 * POOL_LEASE_S
"""Seconds after the start of a publication for which the lease is surely valid here."""
RELEASE_DEADLINE_S = 30.0
"""Seconds that an empty node has to stop."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _ControlledPool:
    spec: PoolSpec
    state: ScalingState | None = None
    """None until this controller owns the pool."""
    published: PublishPoolRequest | None = None
    published_at: float = float("-inf")
    owner: str = ""
    """Other controller that owns the pool, for the log."""
    shortfall: str = ""
    """Reason why the engine cannot start enough nodes."""

    def mark_lost(self) -> None:
        """Forget everything: another controller may have decided meanwhile."""
        self.state = self.published = None
        self.published_at = float("-inf")


@dataclass(frozen=True, slots=True)
class _Observation:
    """Reports of the public API and of the engine at one time."""

    registered: Sequence[NodeInfo]
    engine_nodes: Sequence[EngineNode]
    backlog: BacklogResponse | None
    pools: Sequence[PoolInfo]


class PoolController:
    """The controller of some pools of one engine."""

    def __init__(
        self,
        engine: ClusterEngine,
        pools: Sequence[PoolSpec],
        client: AsyncTangram,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Control `pools` by `engine`. The key of `client` needs `admin:write` in the project `default`."""
        self._engine = engine
        self._interval_s = interval_s
        self._pools = [_ControlledPool(spec) for spec in sorted(pools, key=lambda spec: spec.name)]
        self._client = client
        self.id = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"

    async def run(self, stop: asyncio.Event, *, stop_nodes: bool = False, abort: asyncio.Event | None = None) -> None:
        """Reconcile until `stop` is set, then give the pools up. Nodes stay unless `stop_nodes` is set.

        With `stop_nodes`, nodes are drained and stopped first, until `abort` is set. Raises `Unauthenticated` and
        `Forbidden` if the key may not control pools.
        """
        try:
            await self._repeat(self.reconcile, stop)
            if stop_nodes:
                await self._repeat(self._stop_nodes, abort or asyncio.Event())
        finally:
            await self._give_up()

    async def reconcile(self) -> bool:
        """Compare and act once. The first pass only acquires the pools. Return False: there is always a next pass.

        Raises `TangramError` and `ClusterEngineError`.
        """
        pools = (await self._client.pools()).items
        rows = {row.name: row for row in pools}
        own = [pool for pool in self._pools if self._may_own(pool, rows.get(pool.spec.name))]
        if own:
            seen = await self._observe(pools)
            for pool in own:
                await self._reconcile_pool(pool, rows.get(pool.spec.name), seen)
        return False

    async def _repeat(self, once: Callable[[], Awaitable[bool]], stop: asyncio.Event) -> None:
        """Call `once` each second until it returns True or `stop` is set. Errors that may pass are logged."""
        problem = ""
        while not stop.is_set():
            try:
                if await once():
                    return
                if problem:
                    log.info("pools are reconciled again")
                problem = ""
            except (Unauthenticated, Forbidden):
                raise
            except (TangramError, ClusterEngineError, OSError) as error:
                if str(error) != problem:
                    log.warning("pools are not reconciled: %s", error)
                problem = str(error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._interval_s)

    def _may_own(self, pool: _ControlledPool, row: PoolInfo | None) -> bool:
        """Return True unless another controller owns the pool. If another one owned it since, its state counts."""
        if row is None or row.controller == self.id:
            return True
        pool.mark_lost()
        if row.controlled and pool.owner != row.controller:
            log.info("pool %s belongs to controller %s; waiting", row.name, row.controller)
            pool.owner = row.controller
        return not row.controlled

    async def _observe(self, pools: Sequence[PoolInfo]) -> _Observation:
        try:
            backlog = await self._client.backlog()
        except Unavailable:
            backlog = None  # no scheduler leads
        return _Observation(
            registered=(await self._client.nodes()).items,
            engine_nodes=await self._engine.nodes(),
            backlog=backlog,
            pools=pools,
        )

    async def _reconcile_pool(self, pool: _ControlledPool, row: PoolInfo | None, seen: _Observation) -> None:
        spec = pool.spec
        members = to_pool_nodes(spec, seen.engine_nodes, seen.registered)
        if pool.state is None:
            first = _first_state(spec, members, row)
            if await self._publish(pool, members, first, reason="a controller has started"):
                log.info("pool %s is controlled by %s", spec.name, self.id)
                pool.state, pool.owner = first, ""
            return
        load = to_pool_load(spec, members, seen.registered, seen.backlog, seen.pools)
        decision = decide(spec, members, load, pool.state, now=time.monotonic())
        if time.monotonic() - pool.published_at < SAFE_LEASE_S:
            for name in decision.reopen:
                await self._client.change_node(name, cordoned=False)
        if not await self._publish(pool, members, decision.state, kind=decision.kind, reason=decision.reason):
            return
        if decision.kind != "hold":
            log.info("pool %s: %s to %d: %s", spec.name, decision.kind, decision.state.wanted, decision.reason)
        pool.state = decision.state
        await self._apply(pool, decision)

    async def _publish(
        self,
        pool: _ControlledPool,
        members: Sequence[PoolNode],
        state: ScalingState,
        *,
        kind: ScalingDecisionName = "hold",
        reason: str,
    ) -> bool:
        """Publish a decision and renew the lease. Return False if another controller owns the pool."""
        spec, now = pool.spec, time.monotonic()
        wish = PublishPoolRequest(
            controller=self.id,
            engine=self._engine.name,
            kind=spec.kind,
            min_nodes=spec.min_nodes,
            max_nodes=spec.max_nodes,
            cores_per_node=cores_per_node(spec, members),
            wanted=state.wanted,
            present=sum(node.engine_state is not None for node in members),
            ready=sum(node.is_held and node.alive and not node.cordoned for node in members),
            draining=sorted(state.draining),
            decision=kind,
            reason="; ".join(filter(None, (pool.shortfall, reason)))[:500],
        )
        is_same = pool.published is not None and _visible(wish) == _visible(pool.published)
        if is_same and now - pool.published_at < PUBLISH_EVERY_S:
            return True
        try:
            await self._client.publish_pool(spec.name, wish)
        except Conflict as error:
            log.info("%s", error)
            pool.mark_lost()
            return False
        pool.published, pool.published_at = wish, now
        return True

    async def _apply(self, pool: _ControlledPool, decision: ScalingDecision) -> None:
        """Act on a published decision, in an order in which a crash at any point loses nothing."""
        if time.monotonic() - pool.published_at > SAFE_LEASE_S:
            pool.mark_lost()
            return
        for name in decision.drain:
            with suppress(NotFound):
                await self._client.change_node(name, cordoned=True, drain_deadline_s=pool.spec.drain_s)
        for name in decision.release:
            await self._engine.release(name, RELEASE_DEADLINE_S)
        shortfall = await self._engine.ensure(pool.spec, decision.start)
        if shortfall and shortfall != pool.shortfall:
            log.warning("pool %s: %s", pool.spec.name, shortfall)
        pool.shortfall = shortfall
        await self._remove(decision.remove)

    async def _remove(self, lost: Iterable[str]) -> None:
        """Remove lost nodes. Those that still have environments are refused until these are lost too."""
        for name in lost:
            with suppress(NotFound, Conflict):
                await self._client.remove_node(name)

    async def _stop_nodes(self) -> bool:
        """Drain all nodes of the owned pools, and stop those that are empty. Return True if none is left."""
        seen = await self._observe([])
        left = 0
        for pool in self._pools:
            if pool.state is None:
                continue
            members = to_pool_nodes(pool.spec, seen.engine_nodes, seen.registered)
            held = [node for node in members if node.is_held]
            left += sum(node.engine_state is not None or node.alive for node in members)
            state = ScalingState(wanted=0, draining=frozenset(node.name for node in held))
            if not await self._publish(
                pool, members, state, kind="scale_down", reason="the controller stops the nodes"
            ):
                continue
            for node in held:
                if node.alive and not node.cordoned:
                    await self._client.change_node(node.name, cordoned=True, drain_deadline_s=pool.spec.drain_s)
                elif node.is_empty or not node.alive:
                    await self._engine.release(node.name, RELEASE_DEADLINE_S)
            await self._remove(node.name for node in members if node.engine_state is None and not node.alive)
        return left == 0

    async def _give_up(self) -> None:
        """Give up the leases, so that a standby takes over at once."""
        for pool in self._pools:
            if pool.published is not None:
                with suppress(TangramError, OSError):
                    await self._client.publish_pool(pool.spec.name, pool.published.model_copy(update={"lease_s": 0.0}))
            pool.mark_lost()


def _visible(wish: PublishPoolRequest) -> dict[str, object]:
    """Return the fields whose change is published at once. The reason changes with each core-second."""
    return wish.model_dump(exclude={"reason"})


def _first_state(spec: PoolSpec, members: Sequence[PoolNode], row: PoolInfo | None) -> ScalingState:
    """Return the state of the previous controller, or that of a new pool."""
    if row is not None:
        return ScalingState(wanted=row.wanted, draining=frozenset(row.draining))
    held = sum(node.is_held for node in members)
    return ScalingState(wanted=min(max(held, spec.min_nodes), spec.max_nodes))
