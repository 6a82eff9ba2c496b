"""Routes of endpoints. A route parses, calls and returns."""

from fastapi import APIRouter, Request

from arl_gateway.deps import gateway_deps
from arl_gateway.endpoints.service import EndpointService
from arl_gateway.http.dependencies import COMMON_ERRORS, Reader
from arl_kit.app import error_responses
from arl_wire.calls import Endpoint, EndpointListResponse, EndpointName
from arl_wire.errors import NotFound

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["endpoints"])


@router.get(
    "/endpoints",
    operation_id="list_endpoints",
    summary="List endpoints",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_endpoints(caller: Reader, request: Request) -> EndpointListResponse:
    """List the external APIs for actions of kind `call`, with their quotas and health.

    Their URLs are shown only to keys of project `default` with `admin:read`.
    """
    endpoints: EndpointService = gateway_deps(request).endpoints
    return await endpoints.list(caller)


@router.get(
    "/endpoints/{name}",
    operation_id="get_endpoint",
    summary="Get an endpoint",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def get_endpoint(name: EndpointName, caller: Reader, request: Request) -> Endpoint:
    """Return an endpoint with its quota and health. Returns 404 for an unknown name."""
    endpoints: EndpointService = gateway_deps(request).endpoints
    return await endpoints.get(name, caller)
