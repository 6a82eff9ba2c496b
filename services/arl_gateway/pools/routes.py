"""Routes of node pools. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, JSON_BODY, AdminWriter, RootAdmin
from arl_gateway.pools.service import PoolAdmin
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.admin.pools import PoolInfo, PoolListResponse, PoolName, PublishPoolRequest
from arl_wire.errors import Conflict, NotFound

__all__ = ["router"]

router = APIRouter(prefix="/v1/admin", tags=["admin"], route_class=OptionalNullRoute)


async def _pools(request: Request) -> PoolAdmin:
    pools: PoolAdmin = gateway_deps(request).pools
    return pools


PoolsDep = Annotated[PoolAdmin, Depends(_pools)]


@router.get(
    "/pools",
    operation_id="list_pools",
    summary="List node pools",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_pools(caller: RootAdmin, pools: PoolsDep) -> PoolListResponse:
    """List node pools with their limits, their nodes and the last scaling decision.

    Requires a key of project `default`, because nodes are shared by all projects.
    """
    return await pools.list()


@router.put(
    "/pools/{name}",
    operation_id="publish_pool",
    summary="Publish a node pool",
    dependencies=JSON_BODY,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, Conflict),
)
async def publish_pool(name: PoolName, body: PublishPoolRequest, caller: AdminWriter, pools: PoolsDep) -> PoolInfo:
    """Publish the state of a pool, and extend the lease of its controller. Controllers call this.

    Returns 409 if another controller owns the pool. Requires a key of project `default`.
    """
    return await pools.publish(name, body, caller)


@router.delete(
    "/pools/{name}",
    status_code=204,
    operation_id="remove_pool",
    summary="Remove a node pool",
    responses=error_responses(*COMMON_ERRORS, Conflict, NotFound),
)
async def remove_pool(name: PoolName, caller: AdminWriter, pools: PoolsDep) -> None:
    """Remove a pool whose controller has stopped. Its nodes are not changed.

    Returns 409 while a controller owns the pool. Requires a key of project `default`.
    """
    await pools.remove(name, caller)
