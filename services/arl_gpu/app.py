"""The GPU manager of one node."""

from dataclasses import asdict, replace

from fastapi import FastAPI

from arl_gpu.engine import EngineSpec
from arl_gpu.host_memory import HostMemory
from arl_gpu.manager import Manager
from arl_gpu.routes import add_hops
from arl_gpu.services import available, own
from arl_gpu.settings import GpuSettings
from arl_gpu.worker import Config
from arl_gpu.worker_client import Worker
from arl_kit.app import create_app, metrics_of
from arl_kit.hops import Hops, mount
from arl_kit.peers import Peers
from arl_manager.process import lifespan_of, readiness_of
from arl_store.tx import open_store
from arl_store.wake import Notifier

__all__ = ["build"]

MAX_BODY = 16 << 20


def build(settings: GpuSettings) -> FastAPI:
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="gpu", pool_size=settings.pool_size)
    peers = Peers(settings.service_token.get_secret_value())
    notifier = Notifier(url, name="gpu")
    metrics = metrics_of("gpu", store)
    files = [*available(settings.services), *own(settings.callables)]
    config = Config(
        services={each.name: each.spec for each in files},
        device_mib=settings.device_mib,
        copy_mib_per_s=settings.copy_mib_per_s,
        eviction=settings.eviction,
        host_mib=settings.host_budget_mib if len(settings.devices) == 1 else None,
        engines_dir=str(settings.engines_dir) if settings.engines_dir is not None else None,
    )
    host = HostMemory(settings.host_budget_mib << 20) if len(settings.devices) > 1 else None
    workers = [_worker(number, config, settings, host) for number in range(len(settings.devices))]
    manager = Manager(store, peers, notifier, workers, files, settings, metrics)
    if host is not None:
        host.tell(manager.scoring.learn)

    lifespan = lifespan_of(manager, store=store, peers=peers, notifier=notifier)
    ready = readiness_of(manager, store=store)
    app = create_app(
        title="tangram gpu manager", lifespan=lifespan, ready=ready, max_body_bytes={"": MAX_BODY}, metrics=metrics
    )
    hops = Hops(settings, "scheduler")
    add_hops(hops, manager)
    mount(app, hops)
    return app


def _worker(number: int, config: Config, settings: GpuSettings, host: HostMemory | None) -> Worker:
    """Of the device of that number, with the engines that are on it."""
    engines = {name: each for name, each in settings.engines.items() if each.device == number}
    specs = {
        name: asdict(
            EngineSpec(url=each.url, family=each.family, size=each.mib << 20, wake_s=each.wake_s, sleep_s=each.sleep_s)
        )
        for name, each in engines.items()
    }
    return Worker(
        replace(config, device=settings.devices[number], engines=specs),
        threads=settings.threads,
        limit_s=settings.batch_limit_s,
        host=host,
        engine_keys={name: key for name, each in engines.items() if (key := each.control_key) is not None},
    )
