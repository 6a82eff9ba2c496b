"""The GPU manager of one node."""

from dataclasses import asdict, replace

from fastapi import FastAPI

from arl_gpu.catalog.service_files import function_services, installed_services
from arl_gpu.node.manager import GpuManager
from arl_gpu.settings import GpuSettings
from arl_gpu.worker.client import WorkerClient
from arl_gpu.worker.engine_controller import EngineSpec
from arl_gpu.worker.host_memory import HostMemory
from arl_gpu.worker.process import WorkerConfig
from arl_kit.app import create_app, create_metrics, metrics_token_check
from arl_kit.internal_api import InternalApi, mount_internal_apis
from arl_kit.service_client import ServiceClient
from arl_node.lifespan import add_grant_route, make_lifespan, make_readiness_check
from arl_store.tx import open_store
from arl_store.wake import WakeNotifier

__all__ = ["build"]

MAX_BODY = 16 << 20


def build(settings: GpuSettings) -> FastAPI:
    """Build the application. It connects to nothing and starts no worker before its lifespan starts."""
    url = settings.database_url.get_secret_value()
    store = open_store(url, name="gpu", pool_size=settings.pool_size)
    peers = ServiceClient(settings.token_issuer("gpu"))
    notifier = WakeNotifier(url, name="gpu")
    metrics = create_metrics("gpu", store)
    files = [*installed_services(settings.services), *function_services(settings.reward_functions)]
    config = WorkerConfig(
        services={each.name: each.spec for each in files},
        device_mib=settings.device_mib,
        copy_mib_per_s=settings.copy_mib_per_s,
        eviction=settings.eviction,
        host_mib=settings.host_budget_mib if len(settings.devices) == 1 else None,
        engines_dir=str(settings.engines_dir) if settings.engines_dir is not None else None,
    )
    host = HostMemory(settings.host_budget_mib << 20) if len(settings.devices) > 1 else None
    workers = [_create_worker(number, config, settings, host) for number in range(len(settings.devices))]
    manager = GpuManager(store, peers, notifier, workers, files, settings, metrics)
    if host is not None:
        host.set_response_handler(manager.dispatcher.update_device)

    lifespan = make_lifespan(manager, store=store, service_client=peers, notifier=notifier)
    ready = make_readiness_check(manager, store=store)
    app = create_app(
        title="tangram gpu manager",
        lifespan=lifespan,
        ready=ready,
        max_body_bytes={"": MAX_BODY},
        metrics=metrics,
        scrape_dependencies=[metrics_token_check(settings)],
    )
    hops = InternalApi(settings, "scheduler", audience=settings.audience)
    add_grant_route(hops, manager)
    mount_internal_apis(app, hops)
    return app


def _create_worker(number: int, config: WorkerConfig, settings: GpuSettings, host: HostMemory | None) -> WorkerClient:
    """Create the client of device `number`'s worker, with the engines on that device."""
    engines = {name: each for name, each in settings.engines.items() if each.device == number}
    specs = {
        name: asdict(
            EngineSpec(
                url=each.url,
                family=each.family,
                size=each.device_memory_mib << 20,
                wake_timeout_s=each.wake_timeout_s,
                sleep_timeout_s=each.sleep_timeout_s,
            )
        )
        for name, each in engines.items()
    }
    return WorkerClient(
        replace(config, device=settings.devices[number], engines=specs),
        threads=settings.threads_per_device,
        limit_s=settings.batch_limit_s,
        host=host,
        engine_keys={name: key for name, each in engines.items() if (key := each.control_key) is not None},
    )
