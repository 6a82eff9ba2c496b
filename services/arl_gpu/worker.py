"""The process that owns a device: it loads services, keeps them resident while there is room, and runs forwards.

`python -m arl_gpu.worker FD CONFIG`; a child of its manager, which it does not outlive. One order at a time. Numerical
libraries are imported with the first service that needs them, so that a node that scores nothing does not pay for them.
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

from arl_core.eviction import Eviction
from arl_core.residency import Residence
from arl_gpu import kinds
from arl_gpu.codes import CODES, HostFull, code_of
from arl_gpu.cpu_device import CpuDevice
from arl_gpu.device import CopyFailed, Device
from arl_gpu.engines import Engines, key_of
from arl_gpu.kept import Piece, own, shared
from arl_gpu.kinds.model import Item, Model
from arl_gpu.messages import STEP, read_blocking, write_blocking
from arl_gpu.residency import NotFreed, Residency
from arl_gpu.services import made_of
from arl_gpu.together import Meetings, Part, PeerGone, PeerNotReady, Peers, mark
from arl_kit.telemetry import set_up_logging

__all__ = ["ENGINE_KEYS", "Config", "device_of", "serve"]

log = logging.getLogger(__name__)

MIB = 1 << 20
STEP_BYTES = 256 * MIB
"""That are read from files between two steps: of a large model, more than one order may take otherwise."""
ENGINE_KEYS = "TANGRAM_ENGINE_KEYS"
"""The variable of a worker's environment that has the engines' keys, as a JSON object by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`services`: the specification of each that there is at the start, by name."""

    services: dict[str, dict[str, Any]]
    pinned: tuple[str, ...] = ()
    device: str = "cpu"
    device_mib: int
    copy_mib_per_s: float | None
    eviction: Eviction = Eviction.COST
    host_mib: int | None = None
    """The most that weights take of host memory."""
    shares_host: bool = False
    """Weights are kept where other workers have them, too, and the manager knows how much that is."""
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`EngineSpec` of each that shares this device, by name."""
    held: tuple[str, ...] = ()
    """Of these, what somebody uses at the start, once for each holder."""
    asleep: tuple[str, ...] = ()
    """Of these, what was told to sleep last."""
    engines_dir: str | None = None
    """Where it is kept what they were told."""

    def open_device(self) -> Device:
        return device_of(
            self.device, device_mib=self.device_mib, copy_mib_per_s=self.copy_mib_per_s, shared=bool(self.engines)
        )


def device_of(name: str, *, device_mib: int, copy_mib_per_s: float | None = None, shared: bool = False) -> Device:
    """`cpu`, of that size and bandwidth, or `cuda:N`, with most of its free memory, or `shared` with engines.

    Raises where it is not there.
    """
    if name == "cpu":
        return CpuDevice(device_mib * MIB, bytes_per_s=copy_mib_per_s * MIB if copy_mib_per_s is not None else None)
    from arl_gpu.cuda_device import CudaDevice  # torch comes with it

    return CudaDevice(int(name.removeprefix("cuda:")), shared=shared)


class _Worker:
    def __init__(self, config: Config, keys: Mapping[str, str], on_step: Callable[[], None]) -> None:
        self._specs, self._on_step = dict(config.services), on_step
        self._shares_host = config.shares_host
        self._residency = Residency(
            config.open_device(),
            eviction=Eviction(config.eviction),
            host_bytes=config.host_mib * MIB if config.host_mib is not None else None,
        )
        self._models: dict[str, Model] = {}
        self._made: tuple[str, dict[str, Any], Model] | None = None
        """One for which there was no room, until the next one is asked for."""
        self._meetings = Meetings(cuda=config.device != "cpu")
        self._engines = Engines(
            config.engines,
            self._residency,
            keys=keys,
            held=config.held,
            asleep=config.asleep,
            directory=Path(config.engines_dir) if config.engines_dir is not None else None,
            on_step=on_step,
        )
        self._pinned = set(config.pinned)
        for name in config.pinned:
            self._residency.pin(self._place(name))
        self._does: Mapping[str, Callable[..., dict[str, Any]]] = {
            "score": self._score,
            "offer": self._offer,
            "forget": self._forget,
            "cool": self._cool,
            "restore": self._restore,
            "evict": self._evict,
            "pin": self._pin,
            "hold": self._hold,
            "release": self._release,
            "look_at": self._look_at,
        }

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """What was found, or why nothing was; and what is on the device now.

        `NotFreed` ends this process, and so does a device that can't be used any more.
        """
        op = order.pop("op")
        try:
            answer = self._does[op](**order)
        except NotFreed:
            raise
        except tuple(CODES) as error:
            if isinstance(error, CopyFailed):
                self._residency.check()
            answer = {"error": code_of(error), "message": str(error)}
            answer |= {"host_bytes": error.size} if isinstance(error, HostFull) else {}
        except Exception as error:  # noqa: BLE001 - the order's giver hears of it, and the next may be another's
            self._residency.check()
            code = "forward_failed" if op == "score" else "order_failed"
            log.warning("%s of %s: %r", code, order.get("service") or order.get("name"), error)
            answer = {"error": code, "message": f"{type(error).__name__}: {_told(error)}"}
        now = {"states": self._states(), "used_bytes": self._residency.used, "fitting": self._fitting()}
        now |= {"engines": self._engines.states, "unheard": sorted(self._engines.unheard)}
        now |= {"refusals": self._engines.refusals}
        return answer | now | {"moves": asdict(self._residency.moves())}

    def _score(
        self,
        service: str,
        items: Sequence[Item],
        waiting: Sequence[str] = (),
        together: Mapping[str, Any] | None = None,
        room: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Compute it from weights that are all on the device; what is needed next is copied meanwhile.

        `together`: with which others it is computed.

        `room`, of what is to be read first: the path of a file for it, and how many bytes that may have.
        """
        part = Part(**together) if together is not None else None
        peers = self._meetings.peers(part)
        begun = time.monotonic()
        waiting = [self._place(each) for each in waiting]
        try:
            with self._brought(service, waiting, peers, part, room) as (model, content, was_there):
                waited_s = time.monotonic() - begun
                cpu, computes_since = time.process_time(), time.monotonic()
                with peers.computing():
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
    def _brought(
        self,
        service: str,
        waiting: Sequence[str],
        peers: Peers,
        part: Part | None,
        room: tuple[str, int] | None,
    ) -> Iterator[tuple[Model, Any, bool]]:
        """Its model, its bytes on the device, and whether they were there.

        Of several peers, once all have theirs. Raises `PeerNotReady` where one has not; and where this one has not, the
        others hear of it.
        """
        with ExitStack() as stack:
            try:
                model = self._model(service, room)
                was_there = self._residency.states[service] is Residence.RESIDENT
                content = stack.enter_context(self._residency.using(service, waiting=waiting))
                self._residency.prefetch(waiting)
            except Exception:
                with suppress(PeerGone):  # then they have heard of worse
                    peers.agree(0)
                raise
            if not peers.agree(mark(self._specs[service], part, getattr(model, "made_of", ""))):
                raise PeerNotReady(f"not all workers that compute {service} together could begin")
            yield model, content, was_there

    def _drop_if_changed(self, service: str) -> None:
        """Another rank may have read what has taken its files' place: the next batch is of one and the same model."""
        model = self._models[service]
        if getattr(model, "made_of", "") != made_of(Path(self._specs[service]["directory"])):
            self._residency.forget(service)
            del self._models[service]

    def _offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        """From now on it can be scored. The same one again is nothing; another of that name takes its place.

        Of one that is split, the first rank says where that can't be.
        """
        if spec.get("options", {}).get("rank") == 0:
            with suppress(OSError):  # what can't be read now says so when it is
                kinds.check_split(spec)
        if self._specs.get(spec["name"]) != spec:
            self._forget(spec["name"])
            self._specs[spec["name"]] = spec
        return {}

    def _forget(self, name: str) -> dict[str, Any]:
        if self._has_engine(name):  # which stays, whoever is served by it
            self._pin(name, on=False)
        else:
            self._residency.forget(name)
            self._pinned.discard(name)
        self._models.pop(name, None)
        self._specs.pop(name, None)
        return {}

    def _cool(self, name: str) -> dict[str, Any]:
        """Out of host memory, for what another worker reads; where it is in use it stays."""
        if name in self._models:
            self._residency.cool(name)
            self._forget_cold()
        return {}

    def _restore(self, name: str, room: tuple[str, int] | None = None) -> dict[str, Any]:
        self._model(name, room)
        with self._residency.using(name):
            pass
        return {}

    def _evict(self, name: str) -> dict[str, Any]:
        """One that is not on the device is evicted already. Said by name, it also leaves where it is pinned."""
        self._residency.evict_if_there(self._place(name))
        return {}

    def _pin(self, name: str, on: bool) -> dict[str, Any]:
        """Resident or not: once it is on the device, no other service's restore makes it leave."""
        (self._pinned.add if on else self._pinned.discard)(name)
        place = self._place(name)
        self._residency.pin(place, on=any(self._place(each) == place for each in self._pinned))
        return {}

    def _hold(self, engine: str, users: int, waiting: Sequence[str] = ()) -> dict[str, Any]:
        """It stays awake until it is released; `held` is false while it wakes up.

        `users`: all that hold it then. Each order says anew how many there are, so none that was lost is missed.
        """
        return {"held": self._engines.hold(engine, users=users, waiting=[self._place(each) for each in waiting])}

    def _release(self, engine: str, users: int) -> dict[str, Any]:
        self._residency.release(key_of(engine), users=users)
        return {}

    def _look_at(self, engine: str, restarted: bool) -> dict[str, Any]:
        self._engines.look_at(engine, restarted=restarted)
        return {}

    def _states(self) -> dict[str, str]:
        """Of services; one that an engine computes is where the engine is."""
        known = self._residency.states
        return {name: known[place].value for name in self._specs if (place := self._place(name)) in known}

    def _fitting(self) -> list[str]:
        """Services for which nobody would have to leave; what was never read may be one of them."""
        known = self._residency.fitting
        return [
            name
            for name in self._specs
            if self._place(name) in known or not (name in self._models or self._has_engine(name))
        ]

    def _has_engine(self, service: str) -> bool:
        return self._place(service) != service

    def _place(self, service: str) -> str:
        """By what name the residency knows it."""
        engine = self._specs.get(service, {}).get("engine")
        return service if engine is None else key_of(engine)

    def _model(self, service: str, room: tuple[str, int] | None = None) -> Model:
        if service not in self._models:
            begun, model = time.monotonic(), self._read(service, room)
            self._residency.load(service, model.weights, took_s=time.monotonic() - begun)
            self._forget_cold()
            self._models[service] = model
        return self._models[service]

    def _read(self, service: str, room: tuple[str, int] | None) -> Model:
        spec = self._specs[service]
        (name, its, made), self._made = self._made or ("", {}, None), None
        model = made if made is not None and (name, its) == (service, spec) else kinds.make(spec)
        self._on_step()
        try:
            model.weights.keep(partial(self._keep, service, room))
        except HostFull:
            self._made = service, spec, model
            raise
        return model

    def _keep(
        self, service: str, room: tuple[str, int] | None, size: int, pieces: Callable[[], Iterator[Piece]]
    ) -> memoryview:
        """Where its weights are kept; there is room before they are copied there. Raises `NoRoom`, `HostFull`."""
        stepping = partial(self._stepping, pieces)
        if not self._shares_host:
            self._residency.expect(service, size)
            self._forget_cold()
            return own(size, stepping)
        path, most = room or ("", 0)
        if most != size:
            raise HostFull(service, size)
        return shared(path, size, stepping)

    def _stepping(self, pieces: Callable[[], Iterator[Piece]]) -> Iterator[Piece]:
        read = 0
        for offset, piece in pieces():
            yield offset, piece
            read += len(piece)
            if read >= STEP_BYTES:
                self._on_step()
                read = 0

    def _forget_cold(self) -> None:
        """A model of what left host memory holds its bytes still."""
        states = self._residency.states
        self._models = {name: each for name, each in self._models.items() if states[name] is not Residence.COLD}


def _told(error: Exception) -> str:
    """Of a file, what is wrong and not where it lies: whoever asked for a score reads it."""
    return error.strerror or "" if isinstance(error, OSError) else str(error)


def serve(channel: socket.socket, config: Config, keys: Mapping[str, str] | None = None) -> None:
    """Until the other end is closed. `keys`: what engines ask for, by their names."""
    worker = _Worker(config, keys or {}, lambda: write_blocking(channel, STEP))
    while (order := read_blocking(channel)) is not None:
        write_blocking(channel, worker.answer(order))


if __name__ == "__main__":
    set_up_logging("gpu-worker", "warning")
    # Command lines can be read by every user of the machine.
    serve(
        socket.socket(fileno=int(sys.argv[1])),
        Config(**json.loads(sys.argv[2])),
        json.loads(os.environ.pop(ENGINE_KEYS, "{}")),
    )
