"""Queues, projects, capacity plans and the audit log, for both clients."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack

from arl_tangram.operations import Operation
from arl_tangram.options import validate_request
from arl_tangram.resources import admin_operations as admin
from arl_wire.actions.explanations import StragglerInfo
from arl_wire.admin.audit_log import AuditLogEntry
from arl_wire.admin.capacity import CapacityPlan, CapacityPlanQuery
from arl_wire.admin.queues import ChangeProjectRequest, ChangeQueueRequest, Project, Queue, QueueQuota

__all__ = ["AsyncQueueMethods", "CapacityOptions", "QueueMethods"]

Value = TypeVar("Value")


class CapacityOptions(TypedDict, total=False):
    """The fields of `CapacityPlanQuery`: a hypothetical change of nodes or load."""

    cores: str
    """Cores of all schedulable nodes together, such as `64`, or a percentage of the present ones, such as `75%`."""
    add_nodes: int
    """Number of additional nodes, each like the largest one."""
    exclude_node: Sequence[str]
    """Names of nodes that take no new actions."""
    actions: int
    """Number of additional actions that arrive now. The fields below describe each of them."""
    cpu: float
    cpu_max: float
    memory_mib: int
    disk_mib: int
    seconds: float
    """Run time on `cpu` cores."""
    parallel_fraction: float


class QueueMethods:
    """Methods for queues, projects, capacity plans and the audit log."""

    _retry_timeout_s: float

    def queues(self) -> list[Queue]:
        """List the queues of this project with their queued and running actions."""
        return self._run(admin.list_queues(retry_timeout_s=self._retry_timeout_s))

    def set_queue_limit(self, task: str, max_queued: int | None) -> Queue:
        """Set how many actions of a task may be queued. None restores the default of the installation."""
        return self._change_queue(task, _change(max_queued=max_queued))

    def pause_queue(self, task: str) -> Queue:
        """Pause a task: none of its queued actions start. Granted actions continue."""
        return self._change_queue(task, _change(paused=True))

    def resume_queue(self, task: str) -> Queue:
        """Resume a paused task."""
        return self._change_queue(task, _change(paused=False))

    def set_queue_weight(self, task: str, weight: float) -> Queue:
        """Set the share of a task relative to the other tasks of this project, 0.01 to 100. The default is 1."""
        return self._change_queue(task, _change(weight=weight))

    def set_queue_quota(
        self,
        task: str,
        running: int | None = None,
        reward_services: Mapping[str, int] | None = None,
        endpoints: Mapping[str, int] | None = None,
    ) -> Queue:
        """Set how many actions of a task may run at once, in total and by service and endpoint.

        Replaces the existing quota. Without arguments there is no limit. Running actions continue.
        """
        return self._change_queue(task, _quota_request(running, reward_services, endpoints))

    def projects(self) -> list[Project]:
        """List projects: all with a key of project `default`, else only the key's own project."""
        return self._run(admin.list_projects(retry_timeout_s=self._retry_timeout_s))

    def set_project_weight(self, name: str, weight: float) -> Project:
        """Set the share of a project relative to other projects, 0.01 to 100. The default is 1.

        Requires a key of project `default`.
        """
        wanted = validate_request(ChangeProjectRequest, {"weight": weight})
        return self._run(admin.change_project(name, wanted, retry_timeout_s=self._retry_timeout_s))

    def stragglers(self) -> list[StragglerInfo]:
        """List actions of this project that run far longer than their class, the furthest beyond its limit first."""
        return self._run(admin.list_stragglers(retry_timeout_s=self._retry_timeout_s))

    def plan_capacity(self, **options: Unpack[CapacityOptions]) -> CapacityPlan:
        """Estimate the queueing delay under a hypothetical capacity or workload. Changes nothing."""
        question = validate_request(CapacityPlanQuery, options)
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
    """Asynchronous methods for queues."""

    _retry_timeout_s: float

    async def queues(self) -> list[Queue]:
        """List the queues of this project with their queued and running actions."""
        return await self._run(admin.list_queues(retry_timeout_s=self._retry_timeout_s))

    async def set_queue_limit(self, task: str, max_queued: int | None) -> Queue:
        """Set how many actions of a task may be queued. None restores the default of the installation."""
        return await self._change_queue(task, _change(max_queued=max_queued))

    async def pause_queue(self, task: str) -> Queue:
        """Pause a task: none of its queued actions start. Granted actions continue."""
        return await self._change_queue(task, _change(paused=True))

    async def resume_queue(self, task: str) -> Queue:
        """Resume a paused task."""
        return await self._change_queue(task, _change(paused=False))

    async def set_queue_weight(self, task: str, weight: float) -> Queue:
        """Set the share of a task relative to the other tasks of this project, 0.01 to 100. The default is 1."""
        return await self._change_queue(task, _change(weight=weight))

    async def set_queue_quota(
        self,
        task: str,
        running: int | None = None,
        reward_services: Mapping[str, int] | None = None,
        endpoints: Mapping[str, int] | None = None,
    ) -> Queue:
        """Set how many actions of a task may run at once, in total and by service and endpoint.

        Replaces the existing quota. Without arguments there is no limit. Running actions continue.
        """
        return await self._change_queue(task, _quota_request(running, reward_services, endpoints))

    async def projects(self) -> list[Project]:
        """List projects: all with a key of project `default`, else only the key's own project."""
        return await self._run(admin.list_projects(retry_timeout_s=self._retry_timeout_s))

    async def set_project_weight(self, name: str, weight: float) -> Project:
        """Set the share of a project relative to other projects, 0.01 to 100. The default is 1.

        Requires a key of project `default`.
        """
        wanted = validate_request(ChangeProjectRequest, {"weight": weight})
        return await self._run(admin.change_project(name, wanted, retry_timeout_s=self._retry_timeout_s))

    async def stragglers(self) -> list[StragglerInfo]:
        """List actions of this project that run far longer than their class, the furthest beyond its limit first."""
        return await self._run(admin.list_stragglers(retry_timeout_s=self._retry_timeout_s))

    async def plan_capacity(self, **options: Unpack[CapacityOptions]) -> CapacityPlan:
        """Estimate the queueing delay under a hypothetical capacity or workload. Changes nothing."""
        question = validate_request(CapacityPlanQuery, options)
        return await self._run(admin.plan_capacity(question, retry_timeout_s=self._retry_timeout_s))

    async def audit_log(
        self, *, limit: int = 100, before: int | None = None, verb: str | None = None, project: str | None = None
    ) -> list[AuditLogEntry]:
        """List changes by administrators, newest first. Needs a key with `admin:read`.

        Args:
            limit: The maximum number of entries.
            before: Return only entries with a smaller id.
            verb: Return only this operation, such as `queue.change`.
            project: Return only changes of this project. Other projects are visible to keys of `default` only.
        """
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
    running: int | None, reward_services: Mapping[str, int] | None, endpoints: Mapping[str, int] | None
) -> ChangeQueueRequest:
    limits = {"running": running, "reward_services": dict(reward_services or {}), "endpoints": dict(endpoints or {})}
    quota = validate_request(QueueQuota, limits)
    return _change(quota=quota if quota.has_limits else None)


def _change(**fields: Any) -> ChangeQueueRequest:
    return validate_request(ChangeQueueRequest, fields)
