"""OpenAI's list of models: what clients look at before they call."""

from typing import Any

from fastapi import APIRouter, Request

from arl_gateway.offered import Offered
from arl_gateway.routes import ANY, Reader
from arl_kit.app import documented

__all__ = ["router"]

router = APIRouter(tags=["compatibility"])


@router.get("/v1/models", operation_id="openai_models", responses=documented(*ANY))
async def models(caller: Reader, request: Request) -> dict[str, Any]:
    """The reward services, as models."""
    offered: Offered = request.app.state.offered
    return {
        "object": "list",
        "data": [
            {"id": each.name, "object": "model", "created": 0, "owned_by": "tangram"}
            for each in await offered.services()
        ],
    }
