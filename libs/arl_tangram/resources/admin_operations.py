"""Operations for administrators: keys, queues, projects, nodes and pools."""

from urllib.parse import quote

from arl_tangram.operations import Operation, SdkRequest, call_with_retry, list_all_pages
from arl_wire.actions.explanations import StragglerInfo, StragglerListResponse
from arl_wire.admin.audit_log import AuditLogEntry, AuditLogResponse
from arl_wire.admin.capacity import BacklogResponse, CapacityPlan, CapacityPlanQuery
from arl_wire.admin.images import ImageListResponse, ImageRequestsResponse, PullImagesRequest, RemoveImagesRequest
from arl_wire.admin.keys import ApiKey, CreateKeyRequest, CreateKeyResponse, KeyListResponse
from arl_wire.admin.nodes import ChangeNodeRequest, NodeInfo, NodeListResponse
from arl_wire.admin.pools import PoolInfo, PoolListResponse, PublishPoolRequest
from arl_wire.admin.queues import (
    ChangeProjectRequest,
    ChangeQueueRequest,
    Project,
    ProjectListResponse,
    Queue,
    QueueListResponse,
)

__all__ = [
    "change_node",
    "change_project",
    "change_queue",
    "create_key",
    "get_backlog",
    "list_audit_log",
    "list_images",
    "list_keys",
    "list_nodes",
    "list_pools",
    "list_projects",
    "list_queues",
    "list_stragglers",
    "plan_capacity",
    "publish_pool",
    "pull_images",
    "remove_images",
    "remove_node",
    "remove_pool",
    "revoke_key",
]

AUDIT_LOG_PAGE = 1000
"""Maximum number of entries in one response."""


def list_nodes(*, retry_timeout_s: float) -> Operation[NodeListResponse]:
    call = SdkRequest(method="GET", path="/v1/admin/nodes")
    return NodeListResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def create_key(request: CreateKeyRequest, *, retry_timeout_s: float) -> Operation[CreateKeyResponse]:
    """Create a key. It is retried only with `key`: otherwise, a retry could not return the key of the first try."""
    call = SdkRequest(method="POST", path="/v1/admin/keys", body=request)
    return CreateKeyResponse.model_validate_json(
        (yield from call_with_retry(call, retry_timeout_s if request.key is not None else 0.0))
    )


def list_keys(*, retry_timeout_s: float) -> Operation[list[ApiKey]]:
    """List all keys, newest first."""
    return (yield from list_all_pages("/v1/admin/keys", {}, KeyListResponse, retry_timeout_s))


def revoke_key(id: int, *, retry_timeout_s: float) -> Operation[ApiKey]:
    call = SdkRequest(method="DELETE", path=f"/v1/admin/keys/{id}")
    return ApiKey.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def list_queues(*, retry_timeout_s: float) -> Operation[list[Queue]]:
    """List all queues in order of creation."""
    return (yield from list_all_pages("/v1/admin/queues", {}, QueueListResponse, retry_timeout_s))


def change_queue(task: str, request: ChangeQueueRequest, *, retry_timeout_s: float) -> Operation[Queue]:
    call = SdkRequest(method="PATCH", path=f"/v1/admin/queues/{quote(task, safe='')}", body=request, send_null=True)
    return Queue.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def list_projects(*, retry_timeout_s: float) -> Operation[list[Project]]:
    """List all projects in order of creation."""
    return (yield from list_all_pages("/v1/admin/projects", {}, ProjectListResponse, retry_timeout_s))


def change_project(name: str, request: ChangeProjectRequest, *, retry_timeout_s: float) -> Operation[Project]:
    call = SdkRequest(method="PATCH", path=f"/v1/admin/projects/{quote(name, safe='')}", body=request)
    return Project.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def change_node(name: str, request: ChangeNodeRequest, *, retry_timeout_s: float) -> Operation[NodeInfo]:
    call = SdkRequest(method="PATCH", path=f"/v1/admin/nodes/{quote(name, safe='')}", body=request)
    return NodeInfo.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def remove_node(name: str, *, retry_timeout_s: float) -> Operation[None]:
    yield from call_with_retry(
        SdkRequest(method="DELETE", path=f"/v1/admin/nodes/{quote(name, safe='')}"), retry_timeout_s
    )


def list_images(*, retry_timeout_s: float) -> Operation[ImageListResponse]:
    call = SdkRequest(method="GET", path="/v1/admin/images")
    return ImageListResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def pull_images(request: PullImagesRequest, *, retry_timeout_s: float) -> Operation[ImageRequestsResponse]:
    call = SdkRequest(method="POST", path="/v1/admin/images:pull", body=request)
    return ImageRequestsResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def remove_images(request: RemoveImagesRequest, *, retry_timeout_s: float) -> Operation[ImageRequestsResponse]:
    call = SdkRequest(method="POST", path="/v1/admin/images:remove", body=request)
    return ImageRequestsResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def list_pools(*, retry_timeout_s: float) -> Operation[PoolListResponse]:
    call = SdkRequest(method="GET", path="/v1/admin/pools")
    return PoolListResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def publish_pool(name: str, request: PublishPoolRequest, *, retry_timeout_s: float) -> Operation[PoolInfo]:
    call = SdkRequest(method="PUT", path=f"/v1/admin/pools/{quote(name, safe='')}", body=request)
    return PoolInfo.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def remove_pool(name: str, *, retry_timeout_s: float) -> Operation[None]:
    yield from call_with_retry(
        SdkRequest(method="DELETE", path=f"/v1/admin/pools/{quote(name, safe='')}"), retry_timeout_s
    )


def get_backlog(*, retry_timeout_s: float) -> Operation[BacklogResponse]:
    call = SdkRequest(method="GET", path="/v1/admin/backlog")
    return BacklogResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def plan_capacity(question: CapacityPlanQuery, *, retry_timeout_s: float) -> Operation[CapacityPlan]:
    query = question.model_dump(exclude_defaults=True)
    call = SdkRequest(method="GET", path="/v1/admin/capacity", query=query)
    return CapacityPlan.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def list_audit_log(
    *, limit: int, before: int | None, verb: str | None, project: str | None, retry_timeout_s: float
) -> Operation[list[AuditLogEntry]]:
    """List at most `limit` entries, newest first, and read as many pages as necessary."""
    filters = {"verb": verb, "project": project}
    found: list[AuditLogEntry] = []
    while len(found) < limit:
        query = {name: value for name, value in {**filters, "before": before}.items() if value is not None}
        query["limit"] = min(limit - len(found), AUDIT_LOG_PAGE)
        call = SdkRequest(method="GET", path="/v1/admin/audit-log", query=query)
        page = AuditLogResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))
        found += page.items
        if page.next_before is None:
            break
        before = page.next_before
    return found


def list_stragglers(*, retry_timeout_s: float) -> Operation[list[StragglerInfo]]:
    call = SdkRequest(method="GET", path="/v1/admin/stragglers")
    return StragglerListResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s))).items
