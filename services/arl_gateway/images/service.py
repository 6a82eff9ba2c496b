"""Listing of images on nodes, and requests to pull and remove them. Admission writes the requests."""

import json
from collections.abc import Sequence

from arl_core.images.pull_planning import PULLS_IMAGES
from arl_gateway.audit_log.queries import insert_audit_log
from arl_gateway.http.auth import ROOT_PROJECT, Caller
from arl_gateway.nodes import queries as node_queries
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore
from arl_wire.admin.images import (
    ImageListResponse,
    ImageRequestsResponse,
    NodeImage,
    PullImagesRequest,
    RemoveImagesRequest,
)
from arl_wire.errors import Conflict, Forbidden
from arl_wire.internal.admission import AffectedRowsResponse, RequestImagesRequest

__all__ = ["ImageAdmin"]


class ImageAdmin:
    """Administration of images. Changes need a key of the first project."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, admission_url: str) -> None:
        self._store, self._peers, self._admission_url = store, peers, admission_url

    async def list(self) -> ImageListResponse:
        """List the images of all nodes by name and node."""
        async with self._store.read() as tx:
            rows = await node_queries.list_node_images(tx)
        return ImageListResponse(items=[NodeImage.model_validate(dict(row)) for row in rows])

    async def pull(self, request: PullImagesRequest, caller: Caller) -> ImageRequestsResponse:
        """Request pulls. Raises `Conflict` if no live node pulls images, and `Forbidden` for other projects."""
        _require_root_project(caller)
        async with self._store.read() as tx:
            rows = await node_queries.list_nodes(tx)
        able = [
            row.name
            for row in rows
            if row.alive and request.pool in (None, row.pool) and _pulls_images(json.loads(row.enforced))
        ]
        if not able:
            where = f"pool {request.pool!r} has no live node that" if request.pool else "no live node"
            raise Conflict(f"{where} pulls images. `tangram doctor` says why under `images`")
        return await self._request("image.pull", request.images, able, caller)

    async def remove(self, request: RemoveImagesRequest, caller: Caller) -> ImageRequestsResponse:
        """Request removals. Raises `Forbidden` for keys of other projects."""
        _require_root_project(caller)
        return await self._request("image.remove", request.images, None, caller)

    async def _request(
        self, verb: str, images: Sequence[str], nodes: Sequence[str] | None, caller: Caller
    ) -> ImageRequestsResponse:
        wish = RequestImagesRequest(images=[*images], nodes=[*nodes] if nodes is not None else None)
        content = await self._peers.call(f"{self._admission_url}/internal/request-images", wish, audience="admission")
        count = AffectedRowsResponse.model_validate_json(content).count
        about = {"project_id": caller.project_id, "api_key_id": caller.key_id}
        async with self._store.write() as tx:
            await insert_audit_log(tx, verb=verb, target="images", detail=wish.model_dump_json(), **about)
        return ImageRequestsResponse(count=count)


def _pulls_images(enforced: list[dict[str, str]]) -> bool:
    return any(each["name"] == PULLS_IMAGES and each["level"] == "enforced" for each in enforced)


def _require_root_project(caller: Caller) -> None:
    if not caller.is_root:
        raise Forbidden(f"images can be changed only with a key of project `{ROOT_PROJECT}`")
