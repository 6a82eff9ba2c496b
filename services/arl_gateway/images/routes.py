"""Routes of images. A route parses, calls and returns."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, JSON_BODY, AdminWriter, RootAdmin
from arl_gateway.images.service import ImageAdmin
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.admin.images import ImageListResponse, ImageRequestsResponse, PullImagesRequest, RemoveImagesRequest
from arl_wire.errors import Conflict

__all__ = ["NODE_IMAGE", "router"]

NODE_IMAGE: dict[str, Any] = {
    "name": "docker.io/library/python:3.12",
    "node": "vm",
    "state": "pulling",
    "digest": "sha256:5c1f3a7d2c8e4b9f0a6d1e2c3b4a5968778695a4b3c2d1e0f1a2b3c4d5e6f708",
    "bytes": 371195904,
    "bytes_done": 104857600,
    "changed_at": "2026-03-02T09:00:00Z",
}
"""Example of the OpenAPI document."""

router = APIRouter(prefix="/v1/admin", tags=["admin"], route_class=OptionalNullRoute)


async def _images(request: Request) -> ImageAdmin:
    images: ImageAdmin = gateway_deps(request).images
    return images


ImagesDep = Annotated[ImageAdmin, Depends(_images)]


@router.get(
    "/images",
    operation_id="list_images",
    summary="List images",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_images(caller: RootAdmin, images: ImagesDep) -> ImageListResponse:
    """List the images of all nodes, and pulls in progress. Requires a key of project `default`."""
    return await images.list()


@router.post(
    "/images:pull",
    operation_id="pull_images",
    summary="Pull images",
    dependencies=JSON_BODY,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, Conflict),
)
async def pull_images(body: PullImagesRequest, caller: AdminWriter, images: ImagesDep) -> ImageRequestsResponse:
    """Request pulls of images before actions need them. The list shows their progress.

    Returns 409 if no live node pulls images. Requires a key of project `default`.
    """
    return await images.pull(body, caller)


@router.post(
    "/images:remove",
    operation_id="remove_images",
    summary="Remove images",
    dependencies=JSON_BODY,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS),
)
async def remove_images(body: RemoveImagesRequest, caller: AdminWriter, images: ImagesDep) -> ImageRequestsResponse:
    """Request the removal of images from all nodes. Images that environments use stay.

    Requires a key of project `default`.
    """
    return await images.remove(body, caller)
