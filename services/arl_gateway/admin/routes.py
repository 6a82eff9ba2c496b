"""Admin routes of keys, queues and the consistency check."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from arl_gateway.admin.consistency import ConsistencyService
from arl_gateway.admin.keys import KeyAdmin
from arl_gateway.admin.queues import QueueAdmin
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, JSON_BODY, Admin, AdminWriter, RootAdmin
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.actions.action import Name
from arl_wire.admin.consistency import ConsistencyReport
from arl_wire.admin.keys import ApiKey, CreateKeyRequest, CreateKeyResponse, KeyListResponse
from arl_wire.admin.queues import ChangeQueueRequest, Queue, QueueListResponse
from arl_wire.errors import Conflict, NotFound

__all__ = ["router"]

router = APIRouter(prefix="/v1/admin", tags=["admin"], route_class=OptionalNullRoute)


async def _key_admin(request: Request) -> KeyAdmin:
    return gateway_deps(request).key_admin


async def _consistency(request: Request) -> ConsistencyService:
    return gateway_deps(request).consistency


async def _queue_admin(request: Request) -> QueueAdmin:
    return gateway_deps(request).queue_admin


KeysDep = Annotated[KeyAdmin, Depends(_key_admin)]
QueuesDep = Annotated[QueueAdmin, Depends(_queue_admin)]
KeyId = Annotated[int, Path(ge=1, le=2**31 - 1)]


@router.post(
    "/keys",
    operation_id="create_key",
    summary="Create an API key",
    dependencies=JSON_BODY,
    status_code=201,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, Conflict),
)
async def create_key(
    body: CreateKeyRequest, caller: AdminWriter, keys: KeysDep, response: Response
) -> CreateKeyResponse:
    """Create an API key.

    Only this response contains the key itself. The name of a new project creates the project. Returns 403 for scopes
    that the caller's own key lacks.
    """
    created = await keys.create(body, caller)
    response.headers["cache-control"] = "no-store"
    return created


@router.get(
    "/keys",
    operation_id="list_keys",
    summary="List API keys",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_keys(
    caller: Admin,
    keys: KeysDep,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> KeyListResponse:
    """List the project's API keys, newest first, including revoked and expired keys."""
    return await keys.list(caller, cursor=cursor, limit=limit)


@router.delete(
    "/keys/{id}",
    operation_id="revoke_key",
    summary="Revoke an API key",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def revoke_key(id: KeyId, caller: AdminWriter, keys: KeysDep) -> ApiKey:
    """Revoke an API key permanently.

    This gateway refuses the key at once, others within seconds. A key that was already revoked is returned unchanged.
    Returns 404 for an unknown id.
    """
    return await keys.revoke(id, caller)


@router.get(
    "/queues",
    operation_id="list_queues",
    summary="List queues",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_queues(
    caller: Admin,
    queues: QueuesDep,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> QueueListResponse:
    """List the project's queues, one per task, with their numbers of queued and running actions."""
    return await queues.list(caller, cursor=cursor, limit=limit)


@router.patch(
    "/queues/{task:path}",
    operation_id="change_queue",
    summary="Change a queue",
    dependencies=JSON_BODY,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound),
)
async def change_queue(
    task: Name,
    body: ChangeQueueRequest,
    caller: AdminWriter,
    queues: QueuesDep,
    create: Annotated[
        bool, Query(description="Create the queue if the task has none yet. Its first action does so otherwise")
    ] = False,
) -> Queue:
    """Change a queue: limit its queued actions, set its weight or quota, pause it or resume it.

    Omitted fields stay unchanged. Returns 404 if the task has no queue yet, unless `create` is true.
    """
    return await queues.change(task, body, caller, create=create)


@router.get(
    "/consistency",
    operation_id="check_consistency",
    summary="Check the consistency",
    responses=error_responses(*COMMON_ERRORS),
)
async def check_consistency(
    caller: RootAdmin, consistency: Annotated[ConsistencyService, Depends(_consistency)]
) -> ConsistencyReport:
    """Check all rows of all projects in one snapshot.

    The report has counts, allocations and violated invariants. Requires a key of project `default`.
    """
    return await consistency.check()
