"""The worker process of a device. It loads services, keeps them resident while they fit, and computes forward passes.

`python -m arl_gpu.worker.process FD CONFIG` is a child of its manager and ends with it. It handles one order at a time.
Numerical libraries are imported with the first service that needs them, so an unused node does not load them.
"""

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from arl_core.residency.eviction import EvictionPolicy
from arl_core.residency.occupancy import ResidencyState
from arl_gpu.catalog.service_files import files_fingerprint
from arl_gpu.devices.cpu_device import CpuDevice
from arl_gpu.devices.interface import CopyFailed, Device
from arl_gpu.models import loader
from arl_gpu.models.interface import Item, RewardModel
from arl_gpu.models.weight_buffer import Chunk, load_private, load_shared
from arl_gpu.parallel.rendezvous import (
    PeerLost,
    PeerNotReady,
    RankInfo,
    RankPeers,
    RendezvousRegistry,
    model_fingerprint,
)
from arl_gpu.worker.engine_set import EngineSet, residency_key
from arl_gpu.worker.messages import PROGRESS, read_blocking, write_blocking
from arl_gpu.worker.residency import DeviceResidency, MemoryNotFreed
from arl_gpu.worker.worker_errors import ERROR_CODES, HostMemoryFull, error_code
from arl_kit.telemetry import set_up_logging

__all__ = ["ENGINE_KEYS", "WorkerConfig", "create_device", "serve"]

log = logging.getLogger(__name__)

MIB = 1 << 20
PROGRESS_BYTES = 256 * MIB
"""Bytes that are read from files between two progress messages: reading a large model can exceed an order's timeout."""
ENGINE_KEYS = "TANGRAM_ENGINE_KEYS"
"""Environment variable with the engines' keys: a JSON object of keys by engine name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The configuration of a worker. `services`: the specification of each service at the start, by name."""

    services: dict[str, dict[str, Any]]
    pinned: tuple[str, ...] = ()
    device: str = "cpu"
    device_mib: int
    copy_mib_per_s: float | None
    eviction: EvictionPolicy = EvictionPolicy.COST
    host_mib: int | None = None
    """Maximum MiB of weights in host memory."""
    shares_host: bool = False
    """True if weights are in files that all workers share; the manager then counts their size."""
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`EngineSpec` of each engine on this device, by name."""
    held: tuple[str, ...] = ()
    """Engines that are in use at the start, once for each user."""
    asleep: tuple[str, ...] = ()
    """Engines whose last command was to sleep."""
    engines_dir: str | None = None
    """Directory of the engines' state files."""

    def open_device(self) -> Device:
        """Open the worker's device."""
        return create_device(
            self.device, device_mib=self.device_mib, copy_mib_per_s=self.copy_mib_per_s, shared=bool(self.engines)
        )


def create_device(name: str, *, device_mib: int, copy_mib_per_s: float | None = None, shared: bool = False) -> Device:
    """Open a device: `cpu` with that size and bandwidth, or `cuda:N` with most of its free memory.

    `shared`: engines use the device too. Raises an error if the device does not exist.
    """
    if name == "cpu":
        return CpuDevice(device_mib * MIB, bytes_per_s=copy_mib_per_s * MIB if copy_mib_per_s is not None else None)
    from arl_gpu.devices.cuda_device import CudaDevice  # imports torch

    return CudaDevice(int(name.removeprefix("cuda:")), shared=shared)


class _OrderHandler:
    def __init__(self, config: WorkerConfig, keys: Mapping[str, str], on_progress: Callable[[], None]) -> None:
        self._specs, self._on_progress = dict(config.services), on_progress
        self._shares_host = config.shares_host
        self._residency = DeviceResidency(
            config.open_device(),
            eviction=EvictionPolicy(config.eviction),
            host_bytes=config.host_mib * MIB if config.host_mib is not None else None,
        )
        self._models: dict[str, RewardModel] = {}
        self._unplaced_model: tuple[str, dict[str, Any], RewardModel] | None = None
        """Name, specification and model of a service that did not fit, until another one is requested."""
        self._rendezvous = RendezvousRegistry(cuda=config.device != "cpu")
        self._engines = EngineSet(
            config.engines,
            self._residency,
            keys=keys,
            in_use=config.held,
            asleep=config.asleep,
            directory=Path(config.engines_dir) if config.engines_dir is not None else None,
            on_progress=on_progress,
        )
        self._pinned = set(config.pinned)
        for name in config.pinned:
            self._residency.pin(self._residency_key(name))
        self._handlers: Mapping[str, Callable[..., dict[str, Any]]] = {
            "score": self._score,
            "offer": self._offer,
            "forget": self._forget,
            "cool": self._unload,
            "restore": self._restore,
            "evict": self._evict,
            "pin": self._pin,
            "hold": self._acquire_engine,
            "release": self._release_engine,
            "look_at": self._check_engine,
        }

    def handle(self, order: dict[str, Any]) -> dict[str, Any]:
        """Execute an order. Return its result or error, and the current state of the device.

        `MemoryNotFreed`, or an unusable device, ends this process.
        """
        op = order.pop("op")
        try:
            answer = self._handlers[op](**order)
        except MemoryNotFreed:
            raise
        except tuple(ERROR_CODES) as error:
            if isinstance(error, CopyFailed):
                self._residency.check()
            answer = {"error": error_code(error), "message": str(error)}
            answer |= {"host_bytes": error.size} if isinstance(error, HostMemoryFull) else {}
        except Exception as error:  # noqa: BLE001 - the client gets the error; the next order may succeed
            self._residency.check()
            code = "forward_failed" if op == "score" else "order_failed"
            log.warning("%s: service or engine %s: %r", code, order.get("service") or order.get("name"), error)
            answer = {"error": code, "message": f"{type(error).__name__}: {_public_message(error)}"}
        now = {"states": self._states(), "used_bytes": self._residency.used, "fitting": self._fitting()}
        now |= {"engines": self._engines.states, "unheard": sorted(self._engines.unconfirmed)}
        now |= {"refusals": self._engines.sleep_errors}
        return answer | now | {"moves": asdict(self._residency.take_stats())}

    def _score(
        self,
        service: str,
        items: Sequence[Item],
        waiting: Sequence[str] = (),
        together: Mapping[str, Any] | None = None,
        room: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Score items with weights on the device, and prefetch the services that are needed next.

        `together`: the ranks that compute it. `room`: the path of a file and its size, if the service is read first.
        """
        part = RankInfo(**together) if together is not None else None
        peers = self._rendezvous.get_peers(part)
        begun = time.monotonic()
        waiting = [self._residency_key(each) for each in waiting]
        try:
            with self._prepare_model(service, waiting, peers, part, room) as (model, content, was_there):
                waited_s = time.monotonic() - begun
                cpu, computes_since = time.process_time(), time.monotonic()
                with peers.batch_scope():
                    scored = model.score(items, content)
                model_cpu_s, model_s = time.process_time() - cpu, time.monotonic() - computes_since
        except PeerNotReady:
            self._drop_if_changed(service)
            raise
        return {
            "entries": scored.entries if part is None or part.rank == 0 else [],
            "texts": scored.texts,
            "tokens": scored.tokens,
            "padding": scored.padding,
            "forward_s": scored.forward_s,
            "forward_cpu_s": scored.forward_cpu_s,
            "model_cpu_s": model_cpu_s,
            "model_s": model_s,
            "restore_s": None if was_there else waited_s,
            "backend": model.backend,
        }

    @contextmanager
    def _prepare_model(
        self,
        service: str,
        waiting: Sequence[str],
        peers: RankPeers,
        rank_info: RankInfo | None,
        room: tuple[str, int] | None,
    ) -> Iterator[tuple[RewardModel, Any, bool]]:
        """Yield the service's model, its bytes on the device, and True if they were there.

        All ranks must have their bytes first. Raises `PeerNotReady` if a rank does not. If this rank fails, it informs
        the others.
        """
        with ExitStack() as stack:
            try:
                model = self._load_model(service, room)
                was_there = self._residency.states[service] is ResidencyState.RESIDENT
                content = stack.enter_context(self._residency.use(service, waiting=waiting))
                self._residency.prefetch(waiting)
            except Exception:
                with suppress(PeerLost):  # the others already know of a worse failure
                    peers.all_agree(0)
                raise
            if not peers.all_agree(model_fingerprint(self._specs[service], rank_info, getattr(model, "made_of", ""))):
                raise PeerNotReady(f"not all workers that compute {service} together could start")
            yield model, content, was_there

    def _drop_if_changed(self, service: str) -> None:
        """Drop a model if its files changed since it was read: another rank may have read the new files."""
        model = self._models[service]
        if getattr(model, "made_of", "") != files_fingerprint(Path(self._specs[service]["directory"])):
            self._residency.forget(service)
            del self._models[service]

    def _offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Offer a service. An unchanged one has no effect; a changed one replaces the old one.

        The first rank of a sharded service reports if it cannot be sharded.
        """
        if spec.get("options", {}).get("rank") == 0:
            with suppress(OSError):  # loading reports unreadable files later
                loader.check_shardable(spec)
        if self._specs.get(spec["name"]) != spec:
            self._forget(spec["name"])
            self._specs[spec["name"]] = spec
        return {}

    def _forget(self, name: str) -> dict[str, Any]:
        if self._has_engine(name):  # the engine stays without judges
            self._pin(name, on=False)
        else:
            self._residency.forget(name)
            self._pinned.discard(name)
        self._models.pop(name, None)
        self._specs.pop(name, None)
        return {}

    def _unload(self, name: str) -> dict[str, Any]:
        """Unload a service from host memory for a service of another worker. It stays while it is in use."""
        if name in self._models:
            self._residency.unload(name)
            self._drop_cold_models()
        return {}

    def _restore(self, name: str, room: tuple[str, int] | None = None) -> dict[str, Any]:
        self._load_model(name, room)
        with self._residency.use(name):
            pass
        return {}

    def _evict(self, name: str) -> dict[str, Any]:
        """Evict a service if it is on the device. An explicit eviction ignores a pin."""
        self._residency.evict_if_present(self._residency_key(name))
        return {}

    def _pin(self, name: str, on: bool) -> dict[str, Any]:
        """Pin or unpin a service in any state. No other restore evicts a pinned service."""
        (self._pinned.add if on else self._pinned.discard)(name)
        place = self._residency_key(name)
        self._residency.pin(place, on=any(self._residency_key(each) == place for each in self._pinned))
        return {}

    def _acquire_engine(self, engine: str, users: int, waiting: Sequence[str] = ()) -> dict[str, Any]:
        """Acquire an engine, which stays awake until its release; `held` is false while it wakes up.

        `users` is the total number of users. Every order repeats it, so a lost order has no effect.
        """
        return {
            "held": self._engines.acquire(engine, users=users, waiting=[self._residency_key(each) for each in waiting])
        }

    def _release_engine(self, engine: str, users: int) -> dict[str, Any]:
        self._residency.release_engine(residency_key(engine), users=users)
        return {}

    def _check_engine(self, engine: str, restarted: bool) -> dict[str, Any]:
        self._engines.check_state(engine, restarted=restarted)
        return {}

    def _states(self) -> dict[str, str]:
        """Return the states of services. A judge has the state of its engine."""
        known = self._residency.states
        return {name: known[place].value for name in self._specs if (place := self._residency_key(name)) in known}

    def _fitting(self) -> list[str]:
        """Return services that fit without an eviction, including services of unknown size."""
        known = self._residency.fitting
        return [
            name
            for name in self._specs
            if self._residency_key(name) in known or not (name in self._models or self._has_engine(name))
        ]

    def _has_engine(self, service: str) -> bool:
        return self._residency_key(service) != service

    def _residency_key(self, service: str) -> str:
        """Return the service's key in the residency."""
        engine = self._specs.get(service, {}).get("engine")
        return service if engine is None else residency_key(engine)

    def _load_model(self, service: str, room: tuple[str, int] | None = None) -> RewardModel:
        if service not in self._models:
            begun, model = time.monotonic(), self._read_model(service, room)
            self._residency.load(service, model.weights, took_s=time.monotonic() - begun)
            self._drop_cold_models()
            self._models[service] = model
        return self._models[service]

    def _read_model(self, service: str, room: tuple[str, int] | None) -> RewardModel:
        spec = self._specs[service]
        (name, its, made), self._unplaced_model = self._unplaced_model or ("", {}, None), None
        model = made if made is not None and (name, its) == (service, spec) else loader.create_model(spec)
        self._on_progress()
        try:
            model.weights.allocate(partial(self._allocate_weights, service, room))
        except HostMemoryFull:
            self._unplaced_model = service, spec, model
            raise
        return model

    def _allocate_weights(
        self, service: str, room: tuple[str, int] | None, size: int, chunks: Callable[[], Iterator[Chunk]]
    ) -> memoryview:
        """Return the service's weights. Raises `InsufficientMemory` or `HostMemoryFull` before any copy."""
        stepping = partial(self._report_progress, chunks)
        if not self._shares_host:
            self._residency.reserve_host_bytes(service, size)
            self._drop_cold_models()
            return load_private(size, stepping)
        path, most = room or ("", 0)
        if most != size:
            raise HostMemoryFull(service, size)
        return load_shared(path, size, stepping)

    def _report_progress(self, chunks: Callable[[], Iterator[Chunk]]) -> Iterator[Chunk]:
        read = 0
        for offset, piece in chunks():
            yield offset, piece
            read += len(piece)
            if read >= PROGRESS_BYTES:
                self._on_progress()
                read = 0

    def _drop_cold_models(self) -> None:
        """Drop models that left host memory, because a model keeps its bytes alive."""
        states = self._residency.states
        self._models = {name: each for name, each in self._models.items() if states[name] is not ResidencyState.COLD}


def _public_message(error: Exception) -> str:
    """Return the error's text without a file's path, because clients read it."""
    return error.strerror or "" if isinstance(error, OSError) else str(error)


def serve(channel: socket.socket, config: WorkerConfig, keys: Mapping[str, str] | None = None) -> None:
    """Handle orders until the manager closes the channel. `keys`: API keys by engine name."""
    worker = _OrderHandler(config, keys or {}, lambda: write_blocking(channel, PROGRESS))
    while (order := read_blocking(channel)) is not None:
        write_blocking(channel, worker.handle(order))


if __name__ == "__main__":
    set_up_logging("gpu-worker", "warning")
    # Keys are in the environment, because every user can read command lines.
    serve(
        socket.socket(fileno=int(sys.argv[1])),
        WorkerConfig(**json.loads(sys.argv[2])),
        json.loads(os.environ.pop(ENGINE_KEYS, "{}")),
    )
