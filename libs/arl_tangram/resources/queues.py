"""Queues, projects, capacity plans and the audit log, for both clients."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypeVar

from arl_tangram import admin
from arl_tangram.operations import Operation
from arl_wire.actions.explanations import StragglerInfo
from arl_wire.admin.audit_log import AuditLogEntry
from arl_wire.admin.capacity import CapacityPlan, CapacityPlanQuery
from arl_wire.admin.queues import ChangeProjectRequest, ChangeQueueRequest, Project, Queue, QueueQuota

__all__ = ["AsyncQueueMethods", "QueueMethods"]

Value = TypeVar("Value")


class QueueMethods:
    _retry_timeout_s: float

    def queues(self) -> list[Queue]:
        """Those of our project, with what waits and runs now."""
        return self._run(admin.list_queues(retry_timeout_s=self._retry_timeout_s))

    def set_queue_limit(self, task: str, max_queued: int | None) -> Queue:
        """How many actions may wait for a task; None: as many as the installation allows by default."""
        return self._change_queue(task, ChangeQueueRequest(max_queued=max_queued))

    def pause_queue(self, task: str) -> Queue:
        """Nothing of the task starts from now on; what was granted already goes on."""
        return self._change_queue(task, ChangeQueueRequest(paused=True))

    def resume_queue(self, task: str) -> Queue:
        return self._change_queue(task, ChangeQueueRequest(paused=False))

    def set_queue_weight(self, task: str, weight: float) -> Queue:
        """Its share beside the other tasks of our project, 0.01 to 100; 1 at first."""
        return self._change_queue(task, ChangeQueueRequest(weight=weight))

    def set_queue_quota(
        self,
        task: str,
        running: int | None = None,
        services: Mapping[str, int] | None = None,
        endpoints: Mapping[str, int] | None = None,
    ) -> Queue:
        """How many actions of a task may run at once, be scored by services and call endpoints, by name; as many as
        find room if none is given. Takes the place of the quota that it has; what runs already goes on.
        """
        return self._change_queue(task, _quota_request(running, services, endpoints))

    def projects(self) -> list[Project]:
        """All, with a key of project `default`; ours with any other."""
        return self._run(admin.list_projects(retry_timeout_s=self._retry_timeout_s))

    def set_project_weight(self, name: str, weight: float) -> Project:
        """Its share beside the other projects, 0.01 to 100; 1 at first. Needs a key of project `default`."""
        wanted = ChangeProjectRequest(weight=weight)
        return self._run(admin.change_project(name, wanted, retry_timeout_s=self._retry_timeout_s))

    def stragglers(self) -> list[StragglerInfo]:
        """What of our project runs far longer than others like it, the furthest beyond its limit first."""
        return self._run(admin.list_stragglers(retry_timeout_s=self._retry_timeout_s))

    def plan_capacity(self, question: CapacityPlanQuery) -> CapacityPlan:
        """Estimate the queueing delay under a hypothetical capacity or workload. Changes nothing."""
        return self._run(admin.plan_capacity(question, retry_timeout_s=self._retry_timeout_s))

    def audit_log(
        self, *, limit: int = 100, before: int | None = None, verb: str | None = None, project: str | None = None
    ) -> list[AuditLogEntry]:
        """List changes by administrators, newest first. Needs a key with `admin:read`.

        Args:
            limit: The maximum number of entries.
            before: Return only entries with a smaller id.
            verb: Return only this operation, such as `queue.change`.
            project: Return only changes of this project. Other projects are visible to keys of `default` only.
        """
        return self._run(
            admin.list_audit_log(
                limit=limit, before=before, verb=verb, project=project, retry_timeout_s=self._retry_timeout_s
            )
        )

    def _change_queue(self, task: str, request: ChangeQueueRequest) -> Queue:
        return self._run(admin.change_queue(task, request, retry_timeout_s=self._retry_timeout_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncQueueMethods:
    """What each method does is said at `Shares`."""

    _retry_timeout_s: float

    async def queues(self) -> list[Queue]:
        return await self._run(admin.list_queues(retry_timeout_s=self._retry_timeout_s))

    async def set_queue_limit(self, task: str, max_queued: int | None) -> Queue:
        return await self._change_queue(task, ChangeQueueRequest(max_queued=max_queued))

    async def pause_queue(self, task: str) -> Queue:
        return await self._change_queue(task, ChangeQueueRequest(paused=True))

    async def resume_queue(self, task: str) -> Queue:
        return await self._change_queue(task, ChangeQueueRequest(paused=False))

    async def set_queue_weight(self, task: str, weight: float) -> Queue:
        return await self._change_queue(task, ChangeQueueRequest(weight=weight))

    async def set_queue_quota(
        self,
        task: str,
        running: int | None = None,
        services: Mapping[str, int] | None = None,
        endpoints: Mapping[str, int] | None = None,
    ) -> Queue:
        return await self._change_queue(task, _quota_request(running, services, endpoints))

    async def projects(self) -> list[Project]:
        return await self._run(admin.list_projects(retry_timeout_s=self._retry_timeout_s))

    async def set_project_weight(self, name: str, weight: float) -> Project:
        wanted = ChangeProjectRequest(weight=weight)
        return await self._run(admin.change_project(name, wanted, retry_timeout_s=self._retry_timeout_s))

    async def stragglers(self) -> list[StragglerInfo]:
        return await self._run(admin.list_stragglers(retry_timeout_s=self._retry_timeout_s))

    async def plan_capacity(self, question: CapacityPlanQuery) -> CapacityPlan:
        return await self._run(admin.plan_capacity(question, retry_timeout_s=self._retry_timeout_s))

    async def audit_log(
        self, *, limit: int = 100, before: int | None = None, verb: str | None = None, project: str | None = None
    ) -> list[AuditLogEntry]:
        return await self._run(
            admin.list_audit_log(
                limit=limit, before=before, verb=verb, project=project, retry_timeout_s=self._retry_timeout_s
            )
        )

    async def _change_queue(self, task: str, request: ChangeQueueRequest) -> Queue:
        return await self._run(admin.change_queue(task, request, retry_timeout_s=self._retry_timeout_s))

    @abstractmethod
    async def _run(self, operation: Operation[Value]) -> Value: ...


def _quota_request(
    running: int | None, services: Mapping[str, int] | None, endpoints: Mapping[str, int] | None
) -> ChangeQueueRequest:
    quota = QueueQuota(running=running, services=dict(services or {}), endpoints=dict(endpoints or {}))
    return ChangeQueueRequest(quota=quota if quota.has_limits else None)
