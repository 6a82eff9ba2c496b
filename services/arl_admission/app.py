"""Admission: validates, normalises and inserts actions; records wishes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from arl_admission.metrics import show_tables
from arl_admission.retention import Retention
from arl_admission.routes import add_hops
from arl_admission.service import Admission
from arl_admission.settings import AdmissionSettings
from arl_kit.app import create_app, metrics_of
from arl_kit.hops import Hops, mount
from arl_kit.peers import Peers
from arl_store.tx import open_store

__all__ = ["build"]

MAX_BODY = 64 << 20
POOL_WAIT_S = 1.0
"""Who would wait longer for a connection is told to come back."""


def build(settings: AdmissionSettings) -> FastAPI:
    store = open_store(
        settings.database_url.get_secret_value(),
        name="admission",
        pool_size=settings.pool_size,
        pool_wait_s=POOL_WAIT_S,
    )
    peers = Peers(settings.service_token.get_secret_value())
    metrics = metrics_of("admission", store)
    admission = Admission(store, peers, settings, metrics)
    show_tables(metrics, store)
    retention = Retention(store, retain_s=settings.retain_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await peers.start()
        retention.start()
        yield
        await retention.stop()
        await admission.drain()
        await peers.stop()
        await store.close()

    async def ready(within_s: float) -> str | None:
        await store.ping(within_s=within_s)
        return None

    app = create_app(
        title="tangram admission", lifespan=lifespan, ready=ready, max_body_bytes=MAX_BODY, metrics=metrics
    )
    hops = Hops(settings, "gateway")
    add_hops(hops, admission)
    mount(app, hops)
    return app
