"""The GPU manager of one node."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fastapi import FastAPI

from arl_gpu.host_memory import HostMemory
from arl_gpu.manager import Manager
from arl_gpu.routes import add_hops
from arl_gpu.services import available, own
from arl_gpu.settings import GpuSettings
from arl_gpu.worker import Config
from arl_gpu.worker_client import Worker
from arl_kit.app import create_app, metrics_of
from arl_kit.hops import Hops
from arl_kit.peers import Peers
from arl_store.tx import open_store
from arl_store.wake import Notifier

__all__ = ["build"]

MAX_BODY = 16 << 20


def build(settings: GpuSettings) -> FastAPI:
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="gpu", pool_size=settings.pool_size)
    peers = Peers(settings.service_token.get_secret_value())
    notifier = Notifier(url, name="gpu")
    metrics = metrics_of("gpu", store)
    files = [*available(settings.services), *own(settings.callables)]
    config = Config(
        services={each.name: each.spec for each in files},
        device_mib=settings.device_mib,
        copy_mib_per_s=settings.copy_mib_per_s,
        eviction=settings.eviction,
        host_mib=settings.host_budget_mib,
    )
    host = HostMemory() if len(settings.devices) > 1 else None
    workers = [
        Worker(replace(config, device=device), threads=settings.threads, limit_s=settings.batch_limit_s, host=host)
        for device in settings.devices
    ]
    manager = Manager(store, peers, notifier, workers, files, settings, metrics)

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

    async def ready() -> str | None:
        await store.ping()
        return manager.failed

    app = create_app(
        title="tangram gpu manager", lifespan=lifespan, ready=ready, max_body_bytes={"": MAX_BODY}, metrics=metrics
    )
    hops = Hops(settings, "scheduler")
    add_hops(hops, manager)
    app.router.routes.extend(hops.routes)
    return app
