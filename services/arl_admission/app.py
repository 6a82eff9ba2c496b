"""Admission: validates, normalises and inserts actions; records requested changes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from arl_admission.metrics import add_table_metrics
from arl_admission.retention import RetentionLoop
from arl_admission.routes import add_internal_routes
from arl_admission.service import AdmissionService
from arl_admission.settings import AdmissionSettings
from arl_kit.app import create_app, create_metrics, metrics_token_check
from arl_kit.internal_api import InternalApi, mount_internal_apis
from arl_kit.service_client import ServiceClient
from arl_store.tx import open_store

__all__ = ["build"]

MAX_BODY_BYTES = 64 << 20
POOL_WAIT_S = 1.0
"""Seconds to wait for a connection. After that the caller is asked to retry."""


def build(settings: AdmissionSettings) -> FastAPI:
    """Build the application. It connects to nothing before its lifespan starts."""
    store = open_store(
        settings.database_url.get_secret_value(),
        name="admission",
        pool_size=settings.pool_size,
        pool_wait_s=POOL_WAIT_S,
    )
    peers = ServiceClient(settings.token_issuer("admission"))
    metrics = create_metrics("admission", store)
    admission = AdmissionService(store, peers, settings, metrics)
    add_table_metrics(metrics, store)
    retention = RetentionLoop(store, retention_s=settings.action_retention_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        """Run the connections and retention while the application runs."""
        await peers.start()
        retention.start()
        yield
        await retention.stop()
        await admission.drain()
        await peers.stop()
        await store.close()

    async def ready(within_s: float) -> str | None:
        """Check the database."""
        await store.ping(within_s=within_s)
        return None

    app = create_app(
        title="tangram admission",
        lifespan=lifespan,
        ready=ready,
        max_body_bytes=MAX_BODY_BYTES,
        metrics=metrics,
        scrape_dependencies=[metrics_token_check(settings)],
    )
    hops = InternalApi(settings, "gateway", audience="admission")
    add_internal_routes(hops, admission)
    mount_internal_apis(app, hops)
    return app
