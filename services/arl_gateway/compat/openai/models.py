"""OpenAI's list of models, which clients read before they call."""

from typing import Any

from fastapi import APIRouter, Request

from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import COMMON_ERRORS, Reader
from arl_gateway.reward_services.service_directory import ServiceDirectory
from arl_kit.app import error_responses

__all__ = ["router"]

router = APIRouter(tags=["compatibility"])


@router.get(
    "/v1/models",
    operation_id="openai_models",
    summary="List models (OpenAI)",
    responses=error_responses(*COMMON_ERRORS),
)
async def list_models(caller: Reader, request: Request) -> dict[str, Any]:
    """List the reward services as models.

    The service named in the URL comes first, because some clients use the first.
    """
    offered: ServiceDirectory = gateway_deps(request).service_directory
    named = request.path_params.get("service")
    names = sorted((each.name for each in await offered.list_services()), key=lambda name: (name != named, name))
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "tangram"} for name in names]
    return {"object": "list", "data": data}


@router.get("/health", include_in_schema=False)
async def health() -> dict[str, str]:
    """Return a health status like vLLM's. No key is needed: some clients send none with this request."""
    return {"status": "ok"}
