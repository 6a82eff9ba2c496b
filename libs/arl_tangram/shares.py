"""Queues, projects and plans, for both clients: what waits, which share of the nodes it has, and what would be."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

from arl_tangram import administering
from arl_tangram.operations import Operation
from arl_wire.plans import CapacityPlan, PlanQuestion
from arl_wire.projects import ChangeProject, Project
from arl_wire.queues import ChangeQueue, Queue, Quota
from arl_wire.stragglers import Straggler

__all__ = ["AsyncShares", "Shares"]

Value = TypeVar("Value")


class Shares:
    _patience_s: float

    def queues(self) -> list[Queue]:
        """Those of our project, with what waits and runs now."""
        return self._run(administering.list_queues(patience_s=self._patience_s))

    def limit_queue(self, task: str, max_queued: int | None) -> Queue:
        """How many actions may wait for a task; None: as many as the installation allows by default."""
        return self._change_queue(task, ChangeQueue(max_queued=max_queued))

    def pause_queue(self, task: str) -> Queue:
        """Nothing of the task starts from now on; what was granted already goes on."""
        return self._change_queue(task, ChangeQueue(paused=True))

    def resume_queue(self, task: str) -> Queue:
        return self._change_queue(task, ChangeQueue(paused=False))

    def weigh_queue(self, task: str, weight: float) -> Queue:
        """Its share beside the other tasks of our project, 0.01 to 100; 1 at first."""
        return self._change_queue(task, ChangeQueue(weight=weight))

    def quota_queue(
        self,
        task: str,
        running: int | None = None,
        services: Mapping[str, int] | None = None,
        endpoints: Mapping[str, int] | None = None,
    ) -> Queue:
        """How many actions of a task may run at once, be scored by services and call endpoints, by name; as many as
        find room if none is given. Takes the place of the quota that it has; what runs already goes on.
        """
        return self._change_queue(task, _quota(running, services, endpoints))

    def projects(self) -> list[Project]:
        """All, with a key of project `default`; ours with any other."""
        return self._run(administering.list_projects(patience_s=self._patience_s))

    def weigh_project(self, name: str, weight: float) -> Project:
        """Its share beside the other projects, 0.01 to 100; 1 at first. Needs a key of project `default`."""
        wanted = ChangeProject(weight=weight)
        return self._run(administering.change_project(name, wanted, patience_s=self._patience_s))

    def stragglers(self) -> list[Straggler]:
        """What of our project runs far longer than others like it, the furthest beyond its limit first."""
        return self._run(administering.stragglers(patience_s=self._patience_s))

    def plan(self, question: PlanQuestion) -> CapacityPlan:
        """How long what waits now would wait, with other nodes or more actions. Nothing of it is done."""
        return self._run(administering.plan(question, patience_s=self._patience_s))

    def _change_queue(self, task: str, wanted: ChangeQueue) -> Queue:
        return self._run(administering.change_queue(task, wanted, patience_s=self._patience_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncShares:
    """What each method does is said at `Shares`."""

    _patience_s: float

    async def queues(self) -> list[Queue]:
        return await self._run(administering.list_queues(patience_s=self._patience_s))

    async def limit_queue(self, task: str, max_queued: int | None) -> Queue:
        return await self._change_queue(task, ChangeQueue(max_queued=max_queued))

    async def pause_queue(self, task: str) -> Queue:
        return await self._change_queue(task, ChangeQueue(paused=True))

    async def resume_queue(self, task: str) -> Queue:
        return await self._change_queue(task, ChangeQueue(paused=False))

    async def weigh_queue(self, task: str, weight: float) -> Queue:
        return await self._change_queue(task, ChangeQueue(weight=weight))

    async def quota_queue(
        self,
        task: str,
        running: int | None = None,
        services: Mapping[str, int] | None = None,
        endpoints: Mapping[str, int] | None = None,
    ) -> Queue:
        return await self._change_queue(task, _quota(running, services, endpoints))

    async def projects(self) -> list[Project]:
        return await self._run(administering.list_projects(patience_s=self._patience_s))

    async def weigh_project(self, name: str, weight: float) -> Project:
        wanted = ChangeProject(weight=weight)
        return await self._run(administering.change_project(name, wanted, patience_s=self._patience_s))

    async def stragglers(self) -> list[Straggler]:
        return await self._run(administering.stragglers(patience_s=self._patience_s))

    async def plan(self, question: PlanQuestion) -> CapacityPlan:
        return await self._run(administering.plan(question, patience_s=self._patience_s))

    async def _change_queue(self, task: str, wanted: ChangeQueue) -> Queue:
        return await self._run(administering.change_queue(task, wanted, patience_s=self._patience_s))

    @abstractmethod
    async def _run(self, operation: Operation[Value]) -> Value: ...


def _quota(running: int | None, services: Mapping[str, int] | None, endpoints: Mapping[str, int] | None) -> ChangeQueue:
    quota = Quota(running=running, services=dict(services or {}), endpoints=dict(endpoints or {}))
    return ChangeQueue(quota=quota if quota.limits_something else None)
