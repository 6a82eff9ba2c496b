"""The gateway: the public API, and the only service that clients see."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from arl_gateway.actions.inspect_routes import explain_router, trace_router
from arl_gateway.actions.routes import router, trajectories
from arl_gateway.actions.submit_routes import router as submit_router
from arl_gateway.admin.capacity_routes import router as plan_router
from arl_gateway.admin.project_routes import router as project_router
from arl_gateway.admin.routes import router as admin_router
from arl_gateway.audit_log.routes import router as audit_log_router
from arl_gateway.compat.e2b.access import SandboxPaths
from arl_gateway.compat.e2b.port_routes import HOST_ROUTES
from arl_gateway.compat.routers import E2B_ROUTERS, PREFIXED_MOUNTS
from arl_gateway.compat.routers import ROUTERS as COMPATIBLE
from arl_gateway.deps import build_deps
from arl_gateway.docs_site import serve_docs
from arl_gateway.endpoints.routes import router as endpoint_router
from arl_gateway.environments.archive_routes import ARCHIVE_PATH
from arl_gateway.environments.archive_routes import router as archive_router
from arl_gateway.environments.fork_routes import router as fork_router
from arl_gateway.environments.routes import router as environment_router
from arl_gateway.environments.snapshot_routes import router as snapshot_router
from arl_gateway.http.dependencies import require_root_read
from arl_gateway.http.key_check import KeyCheck
from arl_gateway.images.routes import router as image_router
from arl_gateway.nodes.routes import join_router
from arl_gateway.nodes.routes import router as node_router
from arl_gateway.openapi import customize_openapi
from arl_gateway.pools.routes import router as pool_router
from arl_gateway.ports.routes import PORT_PATHS, PORT_ROUTES
from arl_gateway.ports.routes import router as port_router
from arl_gateway.reward_services.routes import router as reward_router
from arl_gateway.reward_services.score_routes import router as score_router
from arl_gateway.settings import GatewaySettings
from arl_gateway.steps.routes import router as step_router
from arl_gateway.streaming.routes import router as live_router
from arl_kit.app import create_app, create_metrics, provide_deps
from arl_kit.fast_route import serve_by_path
from arl_kit.http_server.request_envelope import OpaqueBodyBytes
from arl_store.tx import open_store

__all__ = ["build"]

# Routers are tried in this order: routes that are called for each action come first.
ROUTERS = (
    submit_router,
    score_router,
    router,
    trajectories,
    step_router,
    live_router,
    port_router,
    environment_router,
    archive_router,
    snapshot_router,
    fork_router,
    reward_router,
    endpoint_router,
    *COMPATIBLE,
    *E2B_ROUTERS,
    trace_router,
    explain_router,
    admin_router,
    node_router,
    join_router,
    pool_router,
    image_router,
    project_router,
    plan_router,
    audit_log_router,
)
POOL_WAIT_S = 1.0
"""Seconds that a request waits for a database connection before it gets 503."""


def build(settings: GatewaySettings) -> FastAPI:
    """Build the application. It connects to nothing before its lifespan starts."""
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="gateway", pool_size=settings.pool_size, pool_wait_s=POOL_WAIT_S)
    deps = build_deps(settings, store)
    metrics = create_metrics("gateway", store)
    deps.register_metrics(metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        """Run the dependencies while the application runs."""
        async with deps.running():
            yield

    async def ready(within_s: float) -> str | None:
        """Check the database."""
        await store.ping(within_s=within_s)
        return None

    app = create_app(
        title="ARL-Tangram",
        lifespan=lifespan,
        ready=ready,
        max_body_bytes={
            ARCHIVE_PATH: settings.max_archive_mib << 20,
            PORT_PATHS: OpaqueBodyBytes(settings.max_archive_mib << 20),
            "": settings.max_body_mib << 20,
        },
        body_timeout_s=settings.body_timeout_s,
        metrics=metrics,
        public=True,
        scrape_dependencies=[require_root_read],
    )
    provide_deps(app, deps)
    app.add_middleware(KeyCheck)  # the outermost: nothing else sees a body without a valid key
    app.add_middleware(SandboxPaths)  # outside of the check, which depends on the path
    _include_routers(app)
    serve_docs(app, settings.docs_dir)
    _add_cell_probe(app, settings.cell)
    return app


def _add_cell_probe(app: FastAPI, number: int) -> None:
    @app.get("/cell", include_in_schema=False)
    async def cell() -> dict[str, int]:
        """Return the number of the cell. A router compares it with its own setting before it forwards requests."""
        return {"cell": number}


def _include_routers(app: FastAPI) -> None:
    for each in ROUTERS:
        app.include_router(each)
    app.router.routes.extend([*PORT_ROUTES, *HOST_ROUTES, *PREFIXED_MOUNTS])
    serve_by_path(app, [route for each in ROUTERS for route in each.routes])
    customize_openapi(app)
