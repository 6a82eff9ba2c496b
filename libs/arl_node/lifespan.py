"""The lifespan, the readiness check and the route of grants of all managers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from uuid import UUID

from fastapi import FastAPI

from arl_kit.internal_api import InternalApi
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore
from arl_store.wake import WakeNotifier
from arl_wire.internal.node import GrantBatchRequest, GrantPayload

__all__ = ["add_grant_route", "make_lifespan", "make_readiness_check"]


class NodeManager(Protocol):
    """A manager that the lifespan starts and stops, and that accepts grants."""

    failed: str | None
    """Reason why the manager cannot work, or None."""

    @property
    def fenced(self) -> str | None:
        """Return the reason why the node may not start actions; None if it may."""

    async def start(self) -> None:
        """Register the node and start its loops."""

    async def stop(self) -> None:
        """Settle ended attempts and stop the loops."""

    async def accept_grants(self, grants: Iterable[GrantPayload], *, epoch: UUID) -> None:
        """Accept copies of granted rows."""


def make_lifespan(
    manager: NodeManager, *, store: PostgresStore, service_client: ServiceClient, notifier: WakeNotifier
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return a lifespan that starts the connections and the manager, and stops them in reverse order."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service_client.start()
        await notifier.start()
        await manager.start()
        yield
        await manager.stop()
        await notifier.stop()
        await service_client.stop()
        await store.close()

    return lifespan


def make_readiness_check(manager: NodeManager, *, store: PostgresStore) -> Callable[[float], Awaitable[str | None]]:
    """Return a readiness check: it pings the database and returns the manager's failure, or None."""

    async def ready(within_s: float) -> str | None:
        await store.ping(within_s=within_s)
        return manager.failed or manager.fenced

    return ready


def add_grant_route(api: InternalApi, manager: NodeManager) -> None:
    """Add the route on which the scheduler notifies this node of grants."""

    async def grants(batch: GrantBatchRequest) -> None:
        """Accept copies of granted rows. The manager's poll finds them too."""
        await manager.accept_grants(batch.grants, epoch=batch.node_epoch)

    api.add_route("/internal/grants", GrantBatchRequest, grants)
