"""The gateway: the public API, and the only service that clients see."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from arl_gateway.actions.explanations import ExplanationService
from arl_gateway.actions.inspect_routes import explain_router as explain_router
from arl_gateway.actions.inspect_routes import trace_router as trace_router
from arl_gateway.actions.service import ActionService
from arl_gateway.actions.submit_routes import router as submit_router
from arl_gateway.actions.traces import TraceService
from arl_gateway.actions.waiters import ActionWaiters
from arl_gateway.admin.audit_log import AuditLogReader
from arl_gateway.admin.audit_log_routes import router as audit_log_router
from arl_gateway.admin.capacity_routes import router as plan_router
from arl_gateway.admin.keys import KeyAdmin
from arl_gateway.admin.node_routes import router as node_router
from arl_gateway.admin.nodes import NodeAdmin
from arl_gateway.admin.project_routes import router as project_router
from arl_gateway.admin.projects import ProjectAdmin
from arl_gateway.admin.queues import QueueAdmin
from arl_gateway.admin.scheduler_reports import CapacityService, StragglerService
from arl_gateway.blocking.code_runs import CodeRunner
from arl_gateway.blocking.command_runner import CommandRunner
from arl_gateway.compat.routers import PREFIXED_MOUNTS
from arl_gateway.compat.routers import ROUTERS as COMPATIBLE
from arl_gateway.endpoints.routes import router as endpoint_router
from arl_gateway.endpoints.service import EndpointService
from arl_gateway.endpoints.upstream_proxy import UpstreamProxy
from arl_gateway.environments.archive_routes import ARCHIVE_PATH
from arl_gateway.environments.archive_routes import router as archive_router
from arl_gateway.environments.archives import ArchiveService
from arl_gateway.environments.routes import router as environment_router
from arl_gateway.environments.service import EnvironmentService
from arl_gateway.environments.snapshot_routes import router as snapshot_router
from arl_gateway.environments.snapshots import SnapshotService
from arl_gateway.http.auth import KeyAuthenticator
from arl_gateway.http.dependencies import admin, require_admin_read, router, trajectories
from arl_gateway.http.rate_limit import RateLimiter
from arl_gateway.openapi import customize_openapi
from arl_gateway.reward_services.routes import router as reward_router
from arl_gateway.reward_services.score_coalescer import ScoreCoalescer
from arl_gateway.reward_services.score_routes import router as score_router
from arl_gateway.reward_services.service import RewardServiceAdmin
from arl_gateway.reward_services.service_directory import ServiceDirectory
from arl_gateway.settings import GatewaySettings
from arl_gateway.streaming.log_streams import NODE_CALL_TIMEOUT_S, LogStreams
from arl_gateway.streaming.routes import router as live_router
from arl_gateway.streaming.stream_limit import StreamLimiter
from arl_kit.app import create_app, create_metrics
from arl_kit.failpoints import Failpoints
from arl_kit.fast_route import serve_by_path
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, open_store
from arl_store.wake import WakeListener

__all__ = ["build"]

# They are tried in this order: first what is asked for with each action.
ROUTERS = (
    submit_router,
    score_router,
    router,
    trajectories,
    live_router,
    environment_router,
    archive_router,
    snapshot_router,
    reward_router,
    endpoint_router,
    *COMPATIBLE,
    trace_router,
    explain_router,
    admin,
    node_router,
    project_router,
    plan_router,
    audit_log_router,
)
POOL_WAIT_S = 1.0
"""Who would wait longer for a connection is told to come back."""


def build(settings: GatewaySettings) -> FastAPI:
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="gateway", pool_size=settings.pool_size, pool_wait_s=POOL_WAIT_S)
    token = settings.service_token.get_secret_value()
    peers = ServiceClient(token)
    nodes = ServiceClient(token, timeout_s=NODE_CALL_TIMEOUT_S, max_per_service=2 * settings.max_log_streams)
    waiters = ActionWaiters(store, poll_s=settings.wait_poll_s)
    listener = WakeListener(url, name="gateway", on_wake=waiters.wake)
    metrics = create_metrics("gateway", store)
    failpoints = Failpoints(settings.failpoints)
    actions = ActionService(store, peers, waiters, admission_url=settings.admission_url, failpoints=failpoints)
    scores = ScoreCoalescer(
        actions, max_inflight=settings.max_inflight_score_batches, max_waiting=settings.max_pending_scores
    )
    code_runs, through, commands = CodeRunner(actions), UpstreamProxy(store, actions), CommandRunner(actions)
    environments = EnvironmentService(store, actions)
    places = StreamLimiter(settings.max_log_streams, project_limit=settings.max_log_streams_per_project)
    live = LogStreams(store, nodes, waiters, places)
    _register_metrics(metrics, waiters, scores, code_runs, commands, places)
    archives = ArchiveService(environments, actions, peers, max_bytes=settings.max_archive_mib << 20)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.actions = actions
        _init_admin_state(app, store, peers, settings)
        app.state.environments = environments
        app.state.live = live
        app.state.traces = TraceService(store)
        app.state.explanations = ExplanationService(store, actions, peers, scheduler_url=settings.scheduler_url)
        app.state.archives = archives
        app.state.snapshots = SnapshotService(store, archives, peers, admission_url=settings.admission_url)
        app.state.rewards = RewardServiceAdmin(store, peers, admission_url=settings.admission_url)
        app.state.endpoints, app.state.through, app.state.held_commands = EndpointService(store), through, commands
        app.state.offered, app.state.scores, app.state.code_runs = ServiceDirectory(store), scores, code_runs
        app.state.limiter = RateLimiter(quota=settings.rate_limit, window_s=settings.rate_limit_window_s)
        for each in (peers, nodes, listener):
            await each.start()
        waiters.start()
        yield
        for held in (scores, code_runs, through, commands, actions):
            await held.drain()
        for running in (waiters, listener, nodes, peers):
            await running.stop()
        await store.close()

    async def ready(within_s: float) -> str | None:
        await store.ping(within_s=within_s)
        return None

    app = create_app(
        title="ARL-Tangram",
        lifespan=lifespan,
        ready=ready,
        max_body_bytes={ARCHIVE_PATH: settings.max_archive_mib << 20, "": settings.max_body_mib << 20},
        body_timeout_s=settings.body_timeout_s,
        metrics=metrics,
        public=True,
        scrape_dependencies=[require_admin_read],
    )
    app.state.drain = partial(_drain, waiters, live, [code_runs, through, commands])
    _include_routers(app)
    return app


def _register_metrics(
    metrics: Metrics,
    waiters: ActionWaiters,
    scores: ScoreCoalescer,
    code_runs: CodeRunner,
    commands: CommandRunner,
    stream_limiter: StreamLimiter,
) -> None:
    metrics.gauge_function("waiting_requests", "Requests that wait for an action to settle", lambda: waiters.waiting)
    metrics.gauge_function("pending_score_calls", "Calls that wait for their scores", lambda: scores.waiting)
    metrics.gauge_function("pending_code_runs", "Calls of /run_code that have no answer yet", lambda: code_runs.waiting)
    metrics.gauge_function(
        "pending_swerex_commands", "Calls of SWE-ReX's that have no answer yet", lambda: commands.waiting
    )
    metrics.gauge_function("log_streams", "Streams of live output", lambda: stream_limiter.active)


def _include_routers(app: FastAPI) -> None:
    for each in ROUTERS:
        app.include_router(each)
    app.router.routes.extend(PREFIXED_MOUNTS)
    serve_by_path(app, [route for each in ROUTERS for route in each.routes])
    customize_openapi(app)


def _init_admin_state(app: FastAPI, store: PostgresStore, peers: ServiceClient, settings: GatewaySettings) -> None:
    app.state.keys = KeyAuthenticator(store, cache_s=settings.key_cache_s)
    app.state.key_admin = KeyAdmin(store, app.state.keys)
    app.state.queue_admin = QueueAdmin(store, peers, admission_url=settings.admission_url)
    app.state.node_admin = NodeAdmin(store, peers, admission_url=settings.admission_url)
    app.state.stragglers = StragglerService(store, peers, scheduler_url=settings.scheduler_url)
    app.state.plans = CapacityService(store, peers, scheduler_url=settings.scheduler_url)
    app.state.audit_log = AuditLogReader(store)
    app.state.project_admin = ProjectAdmin(store, peers, admission_url=settings.admission_url)


def _drain(
    waiters: ActionWaiters, log_streams: LogStreams, blocking: Sequence[CodeRunner | UpstreamProxy | CommandRunner]
) -> None:
    for each in blocking:
        each.stop()
    waiters.drain()
    log_streams.drain()
