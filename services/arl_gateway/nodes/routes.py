"""Routes of nodes. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Request

from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, JSON_BODY, AdminWriter, RootAdmin
from arl_gateway.nodes.join import NodeJoin
from arl_gateway.nodes.service import NodeAdmin
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.admin.nodes import ChangeNodeRequest, JoinNodeResponse, NodeInfo, NodeListResponse
from arl_wire.errors import Conflict, NotFound

__all__ = ["join_router", "router"]

router = APIRouter(prefix="/v1/admin", tags=["admin"], route_class=OptionalNullRoute)

join_router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


async def _nodes(request: Request) -> NodeAdmin:
    nodes: NodeAdmin = gateway_deps(request).node_admin
    return nodes


async def _join(request: Request) -> NodeJoin:
    join: NodeJoin = gateway_deps(request).node_join
    return join


JoinDep = Annotated[NodeJoin, Depends(_join)]
NodesDep = Annotated[NodeAdmin, Depends(_nodes)]
NodeName = Annotated[str, Path(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]+$")]


@router.get(
    "/nodes",
    operation_id="list_nodes",
    summary="List nodes",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_nodes(caller: RootAdmin, nodes: NodesDep) -> NodeListResponse:
    """List all nodes with their capacity, liveness and enforced limits.

    Requires a key of project `default`, because nodes are shared by all projects.
    """
    return await nodes.list()


@router.patch(
    "/nodes/{name}",
    operation_id="change_node",
    summary="Change a node",
    dependencies=JSON_BODY,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound),
)
async def change_node(name: NodeName, body: ChangeNodeRequest, caller: AdminWriter, nodes: NodesDep) -> NodeInfo:
    """Cordon a node, drain it until a deadline, or reopen it.

    Requires a key of project `default`. Returns 404 for an unknown node.
    """
    return await nodes.change(name, body, caller)


@router.delete(
    "/nodes/{name}",
    status_code=204,
    operation_id="remove_node",
    summary="Remove a node",
    responses=error_responses(*COMMON_ERRORS, Conflict, NotFound),
)
async def remove_node(name: NodeName, caller: AdminWriter, nodes: NodesDep) -> None:
    """Remove a dead node.

    Returns 409 while it is alive or has unsettled actions or live environments. This ends the credentials of a node
    that joined. Another removed node that registers again is added again. Requires a key of project `default`.
    """
    await nodes.remove(name, caller)


@join_router.post(
    "/join",
    operation_id="join_node",
    include_in_schema=False,  # a protocol between parts of one version, which no client calls
)
async def join_node(
    request: Request,
    join: JoinDep,
    claim: Annotated[UUID, Header(alias="Idempotency-Key")],
) -> JoinNodeResponse:
    """Exchange a join token for the credentials of its node, once. `tangram node up --join` calls this.

    The `Authorization` header has the id of the token and a proof that the node knows its secret.
    """
    used_from = request.client.host if request.client is not None else "unknown"
    return await join.exchange(request.headers.get("authorization", ""), claim=str(claim), used_from=used_from)
