"""The scheduler: one leader per cell decides, the other schedulers are standbys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from arl_core.policies.policy import SchedulingPolicy
from arl_core.policies.registry import create_policy
from arl_kit.app import VERSION, create_app, create_metrics, metrics_token_check
from arl_kit.internal_api import InternalApi, mount_internal_apis
from arl_kit.service_client import ServiceClient
from arl_kit.telemetry.otel import TracePipeline
from arl_scheduler.inquiry.backlog_reporter import BacklogReporter
from arl_scheduler.inquiry.capacity_planner import ROUND_GRANTS, CapacityPlanner
from arl_scheduler.inquiry.wait_explainer import WaitExplainer
from arl_scheduler.leader.scheduler_traces import SchedulerTraces
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_scheduler.queries.joined_node_queries import JoinedNodes
from arl_scheduler.routes import add_notification_routes, add_query_routes
from arl_scheduler.settings import SchedulerSettings
from arl_store.tx import open_store
from arl_store.wake import WakeNotifier
from arl_trace.export import Exporter

__all__ = ["build"]

MAX_BODY = 64 << 20


def build(settings: SchedulerSettings, pipeline: TracePipeline | None = None) -> FastAPI:
    """Build the application. If there is no `pipeline`, no spans are exported and no rows are read for them."""
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="scheduler", pool_size=settings.pool_size)
    peers = ServiceClient(settings.token_issuer("scheduler"))
    notifier = WakeNotifier(url, name="scheduler")
    metrics = create_metrics("scheduler", store)
    policy = _policy(settings, limit=settings.round_limit)
    exporter = None
    if pipeline is not None:
        rows = open_store(url, name="scheduler-traces", pool_size=1)
        exporter = Exporter(rows, pipeline, version=VERSION, slow_s=settings.trace_slow_s, metrics=metrics)
    traces = SchedulerTraces(exporter, with_rounds=settings.trace_rounds)
    rounds = SchedulingLoop(store, peers, notifier, settings, policy, metrics=metrics, traces=traces)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        """Run the connections, the exporter and the loop while the application runs."""
        await peers.start()
        await notifier.start()
        if exporter is not None:
            await exporter.start()
        rounds.start()
        yield
        await rounds.stop()
        if exporter is not None:
            await exporter.stop()
        await notifier.stop()
        await peers.stop()
        await store.close()

    async def ready(within_s: float) -> str | None:
        """Check the database."""
        await store.ping(within_s=within_s)
        return None

    app = create_app(
        title="tangram scheduler",
        lifespan=lifespan,
        ready=ready,
        max_body_bytes=MAX_BODY,
        metrics=metrics,
        scrape_dependencies=[metrics_token_check(settings)],
    )
    joined = JoinedNodes(store, settings.node_token_master) if settings.node_token_master is not None else None
    hops = InternalApi(settings, "admission", "cpu", "gpu", "api", audience="scheduler", joined=joined)
    add_notification_routes(hops, rounds.inbox)
    questions = InternalApi(settings, "gateway", audience="scheduler")
    add_query_routes(
        questions,
        WaitExplainer(rounds, policy),
        CapacityPlanner(rounds, _policy(settings, limit=ROUND_GRANTS)),
        BacklogReporter(rounds),
    )
    mount_internal_apis(app, hops, questions)
    return app


def _policy(settings: SchedulerSettings, *, limit: int) -> SchedulingPolicy:
    return create_policy(settings.policy, pod_cpu_milli=settings.pod_cpu_milli, limit=limit)
