"""The broker of external APIs: their quotas, shared by all jobs."""

from fastapi import FastAPI

from arl_api.manager import Manager
from arl_api.routes import add_hops
from arl_api.settings import ApiSettings
from arl_kit.app import create_app, metrics_of
from arl_kit.hops import Hops, mount
from arl_kit.peers import Peers
from arl_manager.process import lifespan_of, readiness_of
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

    lifespan = lifespan_of(manager, store=store, peers=peers, notifier=notifier)
    ready = readiness_of(manager, store=store)
    app = create_app(
        title="tangram api broker", lifespan=lifespan, ready=ready, max_body_bytes={"": MAX_BODY}, metrics=metrics
    )
    hops = Hops(settings, "scheduler")
    add_hops(hops, manager)
    mount(app, hops)
    return app
