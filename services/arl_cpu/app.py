"""The CPU manager of one node."""

from fastapi import FastAPI

from arl_cpu.executor import Executor
from arl_cpu.launcher_client import LauncherClient
from arl_cpu.live import Live
from arl_cpu.manager import Manager
from arl_cpu.routes import add_hops, add_live_hops
from arl_cpu.settings import CpuSettings
from arl_cpu.simulated import SimulatedExecutor
from arl_cpu.transfer_routes import WORK, add_transfers
from arl_kit.app import create_app, metrics_of
from arl_kit.hops import Hops, mount
from arl_kit.peers import Peers
from arl_manager.process import lifespan_of, readiness_of
from arl_store.tx import open_store
from arl_store.wake import Notifier

__all__ = ["build"]

MAX_BODY = 16 << 20
MAX_ARCHIVE = 1 << 40
"""Its gateway says how long an archive may be, and the environment how much of it there is room for."""


def build(settings: CpuSettings) -> FastAPI:
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="cpu", pool_size=settings.pool_size)
    peers = Peers(settings.service_token.get_secret_value())
    notifier = Notifier(url, name="cpu")
    metrics = metrics_of("cpu", store)
    executor = _executor(settings)
    manager = Manager(store, peers, notifier, executor, settings, metrics)
    live = Live(executor)

    lifespan = lifespan_of(manager, store=store, peers=peers, notifier=notifier)
    ready = readiness_of(manager, store=store)
    bodies = {WORK: MAX_ARCHIVE, "": MAX_BODY}
    app = create_app(
        title="tangram cpu manager", lifespan=lifespan, ready=ready, max_body_bytes=bodies, metrics=metrics
    )
    hops, transfers = Hops(settings, "scheduler"), Hops(settings, "gateway")
    add_hops(hops, manager)
    live_hops = Hops(settings, "gateway")
    add_live_hops(live_hops, live)
    add_transfers(transfers, manager.transfers, manager.snapshots)
    mount(app, hops, live_hops, transfers)
    app.state.drain = live.drain
    return app


def _executor(settings: CpuSettings) -> Executor:
    if settings.driver == "simulated":
        return SimulatedExecutor()
    if settings.launcher_socket is None:
        raise ValueError("a launcher socket is needed")
    return LauncherClient(settings.launcher_socket)
