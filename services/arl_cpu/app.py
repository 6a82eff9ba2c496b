"""The CPU manager of one node."""

from fastapi import FastAPI

from arl_cpu.contract.executor import Executor
from arl_cpu.contract.launcher_client import LauncherClient
from arl_cpu.contract.simulated_executor import SimulatedExecutor
from arl_cpu.deps import CpuDeps
from arl_cpu.node.log_streams import AttemptStreams
from arl_cpu.node.manager import CpuManager
from arl_cpu.node.ports import EnvironmentPorts
from arl_cpu.node.routes import (
    TRANSFER_PATH,
    add_manager_routes,
    add_port_route,
    add_stream_routes,
    add_transfer_routes,
)
from arl_cpu.settings import CpuSettings
from arl_kit.app import create_app, create_metrics, metrics_token_check, provide_deps
from arl_kit.internal_api import InternalApi, mount_internal_apis
from arl_kit.service_client import ServiceClient
from arl_node.lifespan import make_lifespan, make_readiness_check
from arl_store.tx import open_store
from arl_store.wake import WakeNotifier

__all__ = ["build"]

MAX_BODY_BYTES = 16 << 20
MAX_ARCHIVE_BYTES = 1 << 40
"""The gateway bounds the length of an archive, and the environment's disk limit bounds its content."""


def build(settings: CpuSettings) -> FastAPI:
    """Build the application. It connects to nothing before its lifespan starts."""
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="cpu", pool_size=settings.pool_size)
    peers = ServiceClient(settings.token_issuer("cpu"))
    notifier = WakeNotifier(url, name="cpu")
    metrics = create_metrics("cpu", store)
    executor = _create_executor(settings)
    manager = CpuManager(store, peers, notifier, executor, settings, metrics)
    live = AttemptStreams(executor)

    lifespan = make_lifespan(manager, store=store, service_client=peers, notifier=notifier)
    ready = make_readiness_check(manager, store=store)
    bodies = {TRANSFER_PATH: MAX_ARCHIVE_BYTES, "": MAX_BODY_BYTES}
    app = create_app(
        title="tangram cpu manager",
        lifespan=lifespan,
        ready=ready,
        max_body_bytes=bodies,
        metrics=metrics,
        scrape_dependencies=[metrics_token_check(settings)],
    )
    hops, transfers = (
        InternalApi(settings, "scheduler", audience=settings.audience),
        InternalApi(settings, "gateway", audience=settings.audience),
    )
    add_manager_routes(hops, manager)
    live_hops = InternalApi(settings, "gateway", audience=settings.audience)
    add_stream_routes(live_hops, live)
    add_transfer_routes(transfers, manager.transfers, manager.snapshots)
    ports = EnvironmentPorts(executor)
    add_port_route(live_hops, ports)
    mount_internal_apis(app, hops, live_hops, transfers)

    def drain() -> None:
        """End streams and connections to ports."""
        live.drain()
        ports.draining.set()

    provide_deps(app, CpuDeps(drain=drain))
    return app


def _create_executor(settings: CpuSettings) -> Executor:
    if settings.driver == "simulated":
        return SimulatedExecutor()
    if settings.launcher_socket is None:
        raise ValueError("TANGRAM_LAUNCHER_SOCKET must be set")
    return LauncherClient(settings.launcher_socket)
