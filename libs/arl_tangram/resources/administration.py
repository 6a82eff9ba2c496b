"""Nodes, pools and API keys, for both clients."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from arl_tangram.operations import Operation
from arl_tangram.options import validate_request
from arl_tangram.resources import admin_operations as admin
from arl_wire.admin.capacity import BacklogResponse
from arl_wire.admin.images import ImageListResponse, ImageRequestsResponse, PullImagesRequest, RemoveImagesRequest
from arl_wire.admin.keys import ApiKey, CreateKeyRequest, CreateKeyResponse
from arl_wire.admin.nodes import ChangeNodeRequest, NodeInfo, NodeListResponse
from arl_wire.admin.pools import PoolInfo, PoolListResponse, PublishPoolRequest

__all__ = ["AdminMethods", "AsyncAdminMethods"]

Value = TypeVar("Value")


class AdminMethods:
    """Methods of `Tangram` that read and change nodes and API keys."""

    _retry_timeout_s: float

    def nodes(self) -> NodeListResponse:
        """List the nodes with their capacity, their usage and what they enforce."""
        return self._run(admin.list_nodes(retry_timeout_s=self._retry_timeout_s))

    def create_key(
        self,
        *,
        project: str | None = None,
        scopes: Sequence[str] | None = None,
        expires_in_s: int | None = None,
        key: str | None = None,
    ) -> CreateKeyResponse:
        """Create an API key. Only this response contains the key. Without `key`, the request is not retried.

        Args:
            project: Project of the key. None means the caller's project; a new name creates a project.
            scopes: Permissions of the key, such as `actions:write`. None means `actions:write`.
            expires_in_s: Seconds until the key expires. None means never.
            key: The key itself: `tk_` and 43 characters from `secrets.token_urlsafe(32)`. A repetition with the same
                key returns it, and creates it in the cells of a router that do not have it yet. Needs `admin:*`.
        """
        wanted = {"project": project, "scopes": scopes and list(scopes), "expires_in_s": expires_in_s, "key": key}
        return self._run(
            admin.create_key(validate_request(CreateKeyRequest, wanted), retry_timeout_s=self._retry_timeout_s)
        )

    def keys(self) -> list[ApiKey]:
        """List the keys of this project, newest first."""
        return self._run(admin.list_keys(retry_timeout_s=self._retry_timeout_s))

    def revoke_key(self, id: int) -> ApiKey:
        """Revoke a key. Requests with it fail within seconds."""
        return self._run(admin.revoke_key(id, retry_timeout_s=self._retry_timeout_s))

    def change_node(self, name: str, *, cordoned: bool, drain_deadline_s: float | None = None) -> NodeInfo:
        """Cordon or uncordon a node. With a deadline, in seconds from now, drain it until then."""
        wanted = validate_request(ChangeNodeRequest, {"cordoned": cordoned, "drain_deadline_s": drain_deadline_s})
        return self._run(admin.change_node(name, wanted, retry_timeout_s=self._retry_timeout_s))

    def remove_node(self, name: str) -> None:
        """Remove a node. Raises `Conflict` while it is alive or has allocations."""
        self._run(admin.remove_node(name, retry_timeout_s=self._retry_timeout_s))

    def images(self) -> ImageListResponse:
        """List the images of all nodes, and pulls in progress."""
        return self._run(admin.list_images(retry_timeout_s=self._retry_timeout_s))

    def pull_images(self, images: Sequence[str], *, pool: str | None = None) -> ImageRequestsResponse:
        """Request pulls of images on all nodes, or on those of a pool, before actions need them."""
        wanted = validate_request(PullImagesRequest, {"images": list(images), "pool": pool})
        return self._run(admin.pull_images(wanted, retry_timeout_s=self._retry_timeout_s))

    def remove_images(self, images: Sequence[str]) -> ImageRequestsResponse:
        """Request the removal of images from all nodes. Images that environments use stay."""
        wanted = validate_request(RemoveImagesRequest, {"images": list(images)})
        return self._run(admin.remove_images(wanted, retry_timeout_s=self._retry_timeout_s))

    def pools(self) -> PoolListResponse:
        """List the node pools with the last decisions of their controllers."""
        return self._run(admin.list_pools(retry_timeout_s=self._retry_timeout_s))

    def publish_pool(self, name: str, state: PublishPoolRequest) -> PoolInfo:
        """Publish the state of a pool as its controller. Raises `Conflict` if another controller owns the pool."""
        return self._run(admin.publish_pool(name, state, retry_timeout_s=self._retry_timeout_s))

    def remove_pool(self, name: str) -> None:
        """Remove a pool from the list. Raises `Conflict` while a controller owns it."""
        self._run(admin.remove_pool(name, retry_timeout_s=self._retry_timeout_s))

    def backlog(self) -> BacklogResponse:
        """Return the actions and core-seconds that wait for nodes of each kind."""
        return self._run(admin.get_backlog(retry_timeout_s=self._retry_timeout_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncAdminMethods:
    """Asynchronous methods for nodes and API keys."""

    _retry_timeout_s: float

    async def nodes(self) -> NodeListResponse:
        """List the nodes with their capacity, their usage and what they enforce."""
        return await self._run(admin.list_nodes(retry_timeout_s=self._retry_timeout_s))

    async def create_key(
        self,
        *,
        project: str | None = None,
        scopes: Sequence[str] | None = None,
        expires_in_s: int | None = None,
        key: str | None = None,
    ) -> CreateKeyResponse:
        """Create an API key. Only this response contains the key. Without `key`, the request is not retried.

        Args:
            project: Project of the key. None means the caller's project; a new name creates a project.
            scopes: Permissions of the key, such as `actions:write`. None means `actions:write`.
            expires_in_s: Seconds until the key expires. None means never.
            key: The key itself: `tk_` and 43 characters from `secrets.token_urlsafe(32)`. A repetition with the same
                key returns it, and creates it in the cells of a router that do not have it yet. Needs `admin:*`.
        """
        wanted = {"project": project, "scopes": scopes and list(scopes), "expires_in_s": expires_in_s, "key": key}
        return await self._run(
            admin.create_key(validate_request(CreateKeyRequest, wanted), retry_timeout_s=self._retry_timeout_s)
        )

    async def keys(self) -> list[ApiKey]:
        """List the keys of this project, newest first."""
        return await self._run(admin.list_keys(retry_timeout_s=self._retry_timeout_s))

    async def revoke_key(self, id: int) -> ApiKey:
        """Revoke a key. Requests with it fail within seconds."""
        return await self._run(admin.revoke_key(id, retry_timeout_s=self._retry_timeout_s))

    async def change_node(self, name: str, *, cordoned: bool, drain_deadline_s: float | None = None) -> NodeInfo:
        """Cordon or uncordon a node. With a deadline, in seconds from now, drain it until then."""
        wanted = validate_request(ChangeNodeRequest, {"cordoned": cordoned, "drain_deadline_s": drain_deadline_s})
        return await self._run(admin.change_node(name, wanted, retry_timeout_s=self._retry_timeout_s))

    async def remove_node(self, name: str) -> None:
        """Remove a node. Raises `Conflict` while it is alive or has allocations."""
        await self._run(admin.remove_node(name, retry_timeout_s=self._retry_timeout_s))

    async def images(self) -> ImageListResponse:
        """List the images of all nodes, and pulls in progress."""
        return await self._run(admin.list_images(retry_timeout_s=self._retry_timeout_s))

    async def pull_images(self, images: Sequence[str], *, pool: str | None = None) -> ImageRequestsResponse:
        """Request pulls of images on all nodes, or on those of a pool, before actions need them."""
        wanted = validate_request(PullImagesRequest, {"images": list(images), "pool": pool})
        return await self._run(admin.pull_images(wanted, retry_timeout_s=self._retry_timeout_s))

    async def remove_images(self, images: Sequence[str]) -> ImageRequestsResponse:
        """Request the removal of images from all nodes. Images that environments use stay."""
        wanted = validate_request(RemoveImagesRequest, {"images": list(images)})
        return await self._run(admin.remove_images(wanted, retry_timeout_s=self._retry_timeout_s))

    async def pools(self) -> PoolListResponse:
        """List the node pools with the last decisions of their controllers."""
        return await self._run(admin.list_pools(retry_timeout_s=self._retry_timeout_s))

    async def publish_pool(self, name: str, state: PublishPoolRequest) -> PoolInfo:
        """Publish the state of a pool as its controller. Raises `Conflict` if another controller owns the pool."""
        return await self._run(admin.publish_pool(name, state, retry_timeout_s=self._retry_timeout_s))

    async def remove_pool(self, name: str) -> None:
        """Remove a pool from the list. Raises `Conflict` while a controller owns it."""
        await self._run(admin.remove_pool(name, retry_timeout_s=self._retry_timeout_s))

    async def backlog(self) -> BacklogResponse:
        """Return the actions and core-seconds that wait for nodes of each kind."""
        return await self._run(admin.get_backlog(retry_timeout_s=self._retry_timeout_s))

    @abstractmethod
    async def _run(self, operation: Operation[Value]) -> Value: ...
