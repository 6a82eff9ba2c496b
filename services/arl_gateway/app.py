"""The gateway: the public API, and the only service that clients see."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from arl_gateway.archive_routes import ARCHIVE
from arl_gateway.archive_routes import router as archive_router
from arl_gateway.archives import Archives
from arl_gateway.auth import Keys
from arl_gateway.code_runs import CodeRuns
from arl_gateway.compat.routers import PREFIXED
from arl_gateway.compat.routers import ROUTERS as COMPATIBLE
from arl_gateway.document import describe
from arl_gateway.endpoint_routes import router as endpoint_router
from arl_gateway.endpoints import Endpoints
from arl_gateway.environment_routes import router as environment_router
from arl_gateway.environments import Environments
from arl_gateway.explain_routes import router as explain_router
from arl_gateway.explanations import Explanations
from arl_gateway.held_commands import HeldCommands
from arl_gateway.keys import KeyAdmin
from arl_gateway.live import ASK_S, Live
from arl_gateway.live_routes import router as live_router
from arl_gateway.node_routes import router as node_router
from arl_gateway.nodes import NodeAdmin
from arl_gateway.offered import Offered
from arl_gateway.places import Places
from arl_gateway.plan_routes import router as plan_router
from arl_gateway.plans import Plans
from arl_gateway.project_routes import router as project_router
from arl_gateway.projects import ProjectAdmin
from arl_gateway.queues import QueueAdmin
from arl_gateway.rate import RateLimiter
from arl_gateway.reward_routes import router as reward_router
from arl_gateway.rewards import Rewards
from arl_gateway.routes import admin, may_administer, router, trajectories
from arl_gateway.score_routes import router as score_router
from arl_gateway.scores import Scores
from arl_gateway.service import Actions
from arl_gateway.settings import GatewaySettings
from arl_gateway.snapshot_routes import router as snapshot_router
from arl_gateway.snapshots import Snapshots
from arl_gateway.stragglers import Stragglers
from arl_gateway.submit_routes import router as submit_router
from arl_gateway.through import Through
from arl_gateway.trace_routes import router as trace_router
from arl_gateway.traces import Traces
from arl_gateway.waiters import Waiters
from arl_kit.app import create_app, metrics_of
from arl_kit.failpoints import Failpoints
from arl_kit.fast_route import serve_by_path
from arl_kit.metrics import Metrics
from arl_kit.peers import Peers
from arl_store.tx import Store, open_store
from arl_store.wake import Listener

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
)
POOL_WAIT_S = 1.0
"""Who would wait longer for a connection is told to come back."""


def build(settings: GatewaySettings) -> FastAPI:
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="gateway", pool_size=settings.pool_size, pool_wait_s=POOL_WAIT_S)
    token = settings.service_token.get_secret_value()
    peers = Peers(token)
    nodes = Peers(token, timeout_s=ASK_S, per_peer=2 * settings.followers)
    waiters = Waiters(store, poll_s=settings.wait_poll_s)
    listener = Listener(url, name="gateway", on_wake=waiters.wake)
    metrics = metrics_of("gateway", store)
    failpoints = Failpoints(settings.failpoints)
    actions = Actions(store, peers, waiters, admission_url=settings.admission_url, failpoints=failpoints)
    scores = Scores(actions, flights=settings.score_flights, max_waiting=settings.max_scores_waiting)
    code_runs, through, commands = CodeRuns(actions), Through(store, actions), HeldCommands(actions)
    environments = Environments(store, actions)
    places = Places(settings.followers, of_project=settings.followers_of_project)
    live = Live(store, nodes, waiters, places)
    _show(metrics, waiters, scores, code_runs, commands, places)
    archives = Archives(environments, actions, peers, max_bytes=settings.max_archive_mib << 20)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.actions = actions
        _administer(app, store, peers, settings)
        app.state.environments = environments
        app.state.live = live
        app.state.traces = Traces(store)
        app.state.explanations = Explanations(store, actions, peers, scheduler_url=settings.scheduler_url)
        app.state.archives = archives
        app.state.snapshots = Snapshots(store, archives, peers, admission_url=settings.admission_url)
        app.state.rewards = Rewards(store, peers, admission_url=settings.admission_url)
        app.state.endpoints, app.state.through, app.state.held_commands = Endpoints(store), through, commands
        app.state.offered, app.state.scores, app.state.code_runs = Offered(store), scores, code_runs
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
        max_body_bytes={ARCHIVE: settings.max_archive_mib << 20, "": settings.max_body_mib << 20},
        body_timeout_s=settings.body_timeout_s,
        metrics=metrics,
        public=True,
        may_scrape=[may_administer],
    )
    app.state.drain = partial(_drain, waiters, live, [code_runs, through, commands])
    _serve(app)
    return app


def _show(
    metrics: Metrics, waiters: Waiters, scores: Scores, code_runs: CodeRuns, commands: HeldCommands, places: Places
) -> None:
    metrics.gauge_of("waiting_requests", "Requests that wait for an action to settle", lambda: waiters.waiting)
    metrics.gauge_of("waiting_scores", "Calls that wait for their scores", lambda: scores.waiting)
    metrics.gauge_of("waiting_code_runs", "Calls of /run_code that have no answer yet", lambda: code_runs.waiting)
    metrics.gauge_of("waiting_commands", "Calls of SWE-ReX's that have no answer yet", lambda: commands.waiting)
    metrics.gauge_of("output_followers", "Streams of live output", lambda: places.taken)


def _serve(app: FastAPI) -> None:
    for each in ROUTERS:
        app.include_router(each)
    app.router.routes.extend(PREFIXED)
    serve_by_path(app, [route for each in ROUTERS for route in each.routes])
    describe(app)


def _administer(app: FastAPI, store: Store, peers: Peers, settings: GatewaySettings) -> None:
    app.state.keys = Keys(store, cache_s=settings.key_cache_s)
    app.state.key_admin = KeyAdmin(store, app.state.keys)
    app.state.queue_admin = QueueAdmin(store, peers, admission_url=settings.admission_url)
    app.state.node_admin = NodeAdmin(store, peers, admission_url=settings.admission_url)
    app.state.stragglers = Stragglers(store, peers, scheduler_url=settings.scheduler_url)
    app.state.plans = Plans(store, peers, scheduler_url=settings.scheduler_url)
    app.state.project_admin = ProjectAdmin(store, peers, admission_url=settings.admission_url)


def _drain(waiters: Waiters, live: Live, holding: Sequence[CodeRuns | Through | HeldCommands]) -> None:
    for each in holding:
        each.stop()
    waiters.drain()
    live.drain()
