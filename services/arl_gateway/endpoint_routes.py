"""The public API of endpoints. A route parses, calls and returns."""

from fastapi import APIRouter, Request

from arl_gateway.endpoints import Endpoints
from arl_gateway.routes import ANY, Reader
from arl_kit.app import documented
from arl_wire.calls import Endpoint, EndpointList, EndpointName
from arl_wire.errors import NotFound

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["endpoints"])


@router.get("/endpoints", operation_id="list_endpoints", response_model_exclude_none=True, responses=documented(*ANY))
async def list_endpoints(caller: Reader, request: Request) -> EndpointList:
    """The external APIs that actions of kind `call` may name, with what they bear and how they are.

    Where they are is shown to keys of project `default` with `admin:read`.
    """
    endpoints: Endpoints = request.app.state.endpoints
    return await endpoints.list(caller)


@router.get(
    "/endpoints/{name}",
    operation_id="get_endpoint",
    response_model_exclude_none=True,
    responses=documented(*ANY, NotFound),
)
async def get_endpoint(name: EndpointName, caller: Reader, request: Request) -> Endpoint:
    """One endpoint."""
    endpoints: Endpoints = request.app.state.endpoints
    return await endpoints.get(name, caller)
