"""The broker of external APIs: their quotas, shared by all jobs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from arl_api.manager import Manager
from arl_api.routes import add_hops
from arl_api.settings import ApiSettings
from arl_kit.app import create_app, metrics_of
from arl_kit.hops import Hops, mount
from arl_kit.peers import Peers
from arl_store.tx import open_store
from arl_store.wake import Notifier

__all__ = ["build"]

MAX_BODY = 16 << 20


def build(settings: ApiSettings) -> FastAPI:
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="api", pool_size=settings.pool_size)
    peers = Peers(settings.service_token.get_secret_value())
    notifier = Notifier(url, name="api")
    metrics = metrics_of("api", store)
    manager = Manager(store, peers, notifier, settings, metrics)

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

    async def ready(within_s: float) -> str | None:
        await store.ping(within_s=within_s)
        return manager.failed or manager.fenced

    app = create_app(
        title="tangram api broker", lifespan=lifespan, ready=ready, max_body_bytes={"": MAX_BODY}, metrics=metrics
    )
    hops = Hops(settings, "scheduler")
    add_hops(hops, manager)
    mount(app, hops)
    return app
