"""The process of any manager: what it starts and ends with, and when it is ready."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from fastapi import FastAPI

from arl_kit.peers import Peers
from arl_store.tx import Store
from arl_store.wake import Notifier

__all__ = ["lifespan_of", "readiness_of"]


class Manager(Protocol):
    failed: str | None
    """Why it can do nothing."""

    @property
    def fenced(self) -> str | None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def lifespan_of(
    manager: Manager, *, store: Store, peers: Peers, notifier: Notifier
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await peers.start()
        await notifier.start()
        await manager.start()
        yield
        await manager.stop()
        await notifier.stop()
        await peers.stop()
        await store.close()

    return lifespan


def readiness_of(manager: Manager, *, store: Store) -> Callable[[float], Awaitable[str | None]]:
    async def ready(within_s: float) -> str | None:
        await store.ping(within_s=within_s)
        return manager.failed or manager.fenced

    return ready
