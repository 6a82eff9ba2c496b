"""The broker of external APIs, with quotas shared by all jobs."""

from fastapi import FastAPI

from arl_api.manager import ApiManager
from arl_api.settings import ApiSettings
from arl_kit.app import create_app, create_metrics, metrics_token_check
from arl_kit.internal_api import InternalApi, mount_internal_apis
from arl_kit.service_client import ServiceClient
from arl_node.lifespan import add_grant_route, make_lifespan, make_readiness_check
from arl_store.tx import open_store
from arl_store.wake import WakeNotifier

__all__ = ["build"]

MAX_BODY_BYTES = 16 << 20


def build(settings: ApiSettings) -> FastAPI:
    """Build the application. It connects to nothing before its lifespan starts."""
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="api", pool_size=settings.pool_size)
    peers = ServiceClient(settings.token_issuer("api"))
    notifier = WakeNotifier(url, name="api")
    metrics = create_metrics("api", store)
    manager = ApiManager(store, peers, notifier, settings, metrics)

    lifespan = make_lifespan(manager, store=store, service_client=peers, notifier=notifier)
    ready = make_readiness_check(manager, store=store)
    app = create_app(
        title="tangram api broker",
        lifespan=lifespan,
        ready=ready,
        max_body_bytes={"": MAX_BODY_BYTES},
        metrics=metrics,
        scrape_dependencies=[metrics_token_check(settings)],
    )
    hops = InternalApi(settings, "scheduler", audience=settings.audience)
    add_grant_route(hops, manager)
    mount_internal_apis(app, hops)
    return app
