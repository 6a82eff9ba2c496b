"""The controller of pools, with a system and an engine in memory."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from arl_engines.controller import PoolController
from arl_engines.engine import EngineCapabilities, EngineNode, EngineNodeState, PoolSpec
from arl_wire.admin.capacity import BacklogResponse, NodeKindBacklog
from arl_wire.admin.nodes import NodeInfo, NodeListResponse
from arl_wire.admin.pools import PoolInfo, PoolListResponse, PublishPoolRequest
from arl_wire.errors import Conflict, Forbidden, Unavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POOL = PoolSpec(name="p", min_nodes=1, max_nodes=4, cores=1, cooldown_s=0.0, target_s=1.0)


class MemorySystem:
    """The public API: nodes, pools and the backlog. Every change is noted in `calls`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.rows: dict[str, PoolInfo] = {}
        self.infos: dict[str, NodeInfo] = {}
        self.busy: float | None = 0.0
        """Busy cores; None while no scheduler leads."""
        self.problem: Exception | None = None
        self.reads = 0

    def register(self, name: str, **changed: Any) -> None:
        usual = {"kind": "cpu", "pool": "p", "driver": "simulated", "epoch": UUID(int=1)}
        times = {"registered_at": NOW, "last_heartbeat_at": NOW, "alive": True, "cordoned": False}
        use = {"capacity": {"cpu_milli": 1000}, "running": 0, "environments": 0, "enforced": []}
        self.infos[name] = NodeInfo(name=name, **(usual | times | use | changed))

    async def pools(self) -> PoolListResponse:
        if self.problem is not None:
            raise self.problem
        return PoolListResponse(items=list(self.rows.values()))

    async def publish_pool(self, name: str, state: PublishPoolRequest) -> PoolInfo:
        self.calls.append(("publish", str(state.wanted), *state.draining))
        row = self.rows.get(name)
        if row is not None and row.controlled and row.controller != state.controller:
            raise Conflict("belongs to another")
        values = state.model_dump(exclude={"lease_s"})
        self.rows[name] = PoolInfo(name=name, decided_at=NOW, updated_at=NOW, controlled=state.lease_s > 0, **values)
        return self.rows[name]

    async def nodes(self) -> NodeListResponse:
        self.reads += 1
        return NodeListResponse(items=list(self.infos.values()))

    async def change_node(self, name: str, *, cordoned: bool, drain_deadline_s: float | None = None) -> None:
        self.calls.append(("drain" if cordoned else "reopen", name))
        self.infos[name] = self.infos[name].model_copy(update={"cordoned": cordoned})

    async def remove_node(self, name: str) -> None:
        self.calls.append(("remove", name))
        del self.infos[name]

    async def backlog(self) -> BacklogResponse:
        if self.busy is None:
            raise Unavailable("no scheduler leads")
        load = {"waiting": 0, "waiting_cores": 0, "waiting_core_s": 0, "unknown_cores": 0, "pinned": 0, "running": 0}
        return BacklogResponse(items=[NodeKindBacklog(kind="cpu", busy_cores=self.busy, **load)])


class MemoryEngine:
    """An engine whose nodes register at once."""

    name = "memory"
    capabilities = EngineCapabilities(
        elastic=True, victim_choice=True, preemption_notice=False, restarts_manager=False, root=False, cgroup=False,
        gpu=False,
    )  # fmt: skip

    def __init__(self, system: MemorySystem) -> None:
        self._system = system
        self.names: list[str] = []
        self.room = 500

    async def ensure(self, pool: PoolSpec, count: int) -> str:
        while len(self.names) < min(count, self.room):
            self.names.append(f"{pool.name}-{len(self._system.calls)}{len(self.names)}")
            self._system.calls.append(("start", self.names[-1]))
            self._system.register(self.names[-1])
        return "the cluster is full" if self.room < count else ""

    async def nodes(self) -> Sequence[EngineNode]:
        running = EngineNodeState.RUNNING
        return [EngineNode(name=name, pool="p", state=running, engine_id=name) for name in self.names]

    async def release(self, node: str, deadline_s: float) -> None:
        self._system.calls.append(("release", node))
        self.names.remove(node)
        self._system.register(node, alive=False, cordoned=True)

    async def logs(self, node: str, tail: int) -> str:
        return ""


class Trial:
    """A controller with its system."""

    def __init__(self, system: MemorySystem | None = None, engine: MemoryEngine | None = None) -> None:
        self.system = system or MemorySystem()
        self.engine = engine or MemoryEngine(self.system)
        client: Any = self.system
        self.controller = PoolController(self.engine, [POOL], client, interval_s=0.01)

    async def calls_of(self, passes: int = 1) -> list[tuple[str, ...]]:
        """Return what these passes change."""
        self.system.calls.clear()
        for _ in range(passes):
            await self.controller.reconcile()
        return self.system.calls


async def test_first_pass_only_acquires_the_pool() -> None:
    trial = Trial()
    assert await trial.calls_of() == [("publish", "1")]
    assert [call[0] for call in await trial.calls_of()] == ["start"]


async def test_decision_is_published_before_it_is_applied() -> None:
    trial = Trial()
    await trial.calls_of(2)
    trial.system.busy = 3
    assert [call[0] for call in await trial.calls_of()] == ["publish", "start", "start"]
    trial.system.busy = 0
    calls = await trial.calls_of(3)
    drain = next(call for call in calls if call[0] == "drain")
    publication = next(call for call in calls if call[0] == "publish" and drain[1] in call)
    assert calls.index(publication) < calls.index(drain)


async def test_shortfall_of_the_engine_is_in_the_status_until_it_ends() -> None:
    trial = Trial()
    trial.engine.room = 0
    await trial.calls_of(2)
    trial.system.busy = 2  # a changed number is published at once
    await trial.calls_of()
    assert trial.system.rows["p"].reason.startswith("the cluster is full; ")
    trial.engine.room = 4
    await trial.calls_of(1)
    trial.system.busy = 3
    await trial.calls_of(2)
    assert "the cluster is full" not in trial.system.rows["p"].reason


async def test_pool_of_another_controller_is_left_alone() -> None:
    first = Trial()
    await first.calls_of(2)
    second = Trial(first.system, first.engine)
    first.engine.names.clear()
    assert await second.calls_of(3) == []
    await first.controller.run(stopped())
    assert [call[0] for call in await second.calls_of(2)] == ["publish", "start"]


def stopped() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def test_controller_that_lost_its_pool_meanwhile_does_nothing() -> None:
    trial = Trial()
    await trial.calls_of(2)
    row = trial.system.rows["p"]
    trial.engine.names.clear()
    trial.system.busy = 4

    async def outdated() -> PoolListResponse:
        """Return the list as it was before the other controller took the pool."""
        found = PoolListResponse(items=[row])
        trial.system.rows["p"] = row.model_copy(update={"controller": "other"})
        return found

    trial.system.pools = outdated  # type: ignore[method-assign]
    assert [call[0] for call in await trial.calls_of()] == ["publish"]


async def test_next_controller_continues_the_drain_of_the_last() -> None:
    trial = Trial()
    trial.system.busy = 2
    await trial.calls_of(3)
    one, two = trial.engine.names
    trial.system.register(two, cordoned=True, running=1)
    trial.system.busy = 0
    trial.system.rows["p"] = trial.system.rows["p"].model_copy(
        update={"controlled": False, "wanted": 1, "draining": [two]}
    )
    later = Trial(trial.system, trial.engine)
    assert await later.calls_of(2) == [("publish", "1", two)]
    trial.system.register(two, cordoned=True)
    assert ("release", two) in await later.calls_of()
    assert trial.engine.names == [one]


async def test_unknown_backlog_starts_missing_nodes_only() -> None:
    trial = Trial()
    trial.system.busy = None
    await trial.calls_of(3)
    assert len(trial.engine.names) == 1
    assert trial.system.rows["p"].reason == "the backlog is unknown"


async def test_errors_are_retried_and_a_wrong_key_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    trial, stop = Trial(), asyncio.Event()
    trial.system.problem = Unavailable("the gateway does not answer")
    running = asyncio.create_task(trial.controller.run(stop))
    async with asyncio.timeout(10):
        while "the gateway does not answer" not in caplog.text:
            await asyncio.sleep(0)
        trial.system.problem = None
        while not trial.engine.names:
            await asyncio.sleep(0)
        trial.system.problem = Forbidden("wrong key")
        with pytest.raises(Forbidden):
            await running
    assert caplog.text.count("does not answer") == 1
    assert trial.system.rows["p"].controlled is False


async def test_stopping_the_nodes_drains_releases_and_removes_each() -> None:
    trial = Trial()
    trial.system.busy = 3
    await trial.calls_of(3)
    names = set(trial.engine.names)
    trial.system.calls.clear()
    async with asyncio.timeout(10):
        await trial.controller.run(stopped(), stop_nodes=True)
    done = trial.system.calls
    for name in names:
        assert [call[0] for call in done if call[1] == name] == ["drain", "release", "remove"]
    assert (trial.engine.names, trial.system.infos) == ([], {})
    assert (trial.system.rows["p"].wanted, trial.system.rows["p"].controlled) == (0, False)


async def test_busy_node_is_not_released_when_the_nodes_are_stopped() -> None:
    trial, abort = Trial(), asyncio.Event()
    await trial.calls_of(2)
    (name,) = trial.engine.names
    trial.system.register(name, environments=1)
    stopping = asyncio.create_task(trial.controller.run(stopped(), stop_nodes=True, abort=abort))
    async with asyncio.timeout(10):
        while not trial.system.infos[name].cordoned:
            await asyncio.sleep(0)
        seen = trial.system.reads
        while trial.system.reads < seen + 3:
            await asyncio.sleep(0)
        assert trial.engine.names == [name]
        abort.set()
        await stopping
    assert trial.engine.names == [name]
