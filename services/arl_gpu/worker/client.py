"""The manager's client of a worker process. It starts the worker with the first order and restarts it after a death."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from arl_core.residency.occupancy import ResidencyState
from arl_gpu.models.interface import Item
from arl_gpu.parallel.rendezvous import RankInfo
from arl_gpu.worker.host_memory import HostMemory
from arl_gpu.worker.messages import HOST_FULL, PROGRESS, ResidencyStats, check_response, read_message, write_message
from arl_gpu.worker.process import ENGINE_KEYS, WorkerConfig
from arl_kit.child_process import child_environment, spawn

__all__ = ["WorkerClient", "WorkerDied", "as_no_room"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
"""Variables that set the thread count of numpy, torch and the tokenizer."""
TOKENIZER_PARALLELISM = "TOKENIZERS_PARALLELISM"
"""Variable that makes the tokenizer parallel. With one thread, the hand-over to it costs more than it saves."""
ALLOCATOR_ENV = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""Settings of glibc's allocator: memory that a forward frees stays in the process for the next one.

Requesting it from the kernel again, page by page, takes a tenth to a quarter of a forward on a CPU. A worker keeps up
to 256 MiB in addition to the budgets of weights; larger arrays are returned.
"""
STDERR = 2
EXIT_GRACE_S = 1.0
"""Seconds to wait for the exit code: the channel closes slightly before it is available."""
WAKE_POLL_S = 0.1
"""Seconds between checks of an engine that is waking up; the device executes other orders in between."""
REQUESTS_USER, LOAD_USER = "requests", "load"
"""Users of an engine: the requests of judges, or an operator's load until the engine is awake."""
WORKER_COMMAND = (sys.executable, "-P", "-m", "arl_gpu.worker.process")

EMPTY_RESPONSE: dict[str, Any] = {"states": {}, "used_bytes": 0, "moves": asdict(ResidencyStats()), "fitting": []}
"""Response for a device without a worker."""

log = logging.getLogger(__name__)


class WorkerDied(Exception):
    """A worker that could not be started, or that died or was killed before it responded."""


@dataclass(frozen=True, slots=True)
class _WorkerChild:
    child: "subprocess.Popen[bytes]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class WorkerClient:
    """A client that sends one order at a time; other orders wait.

    `command` is started with a file descriptor and the configuration as arguments.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        threads: int,
        limit_s: float,
        host: HostMemory | None = None,
        engine_keys: Mapping[str, str] | None = None,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        """Initialise the client. `host`: memory of all workers of the node. `engine_keys`: API keys by engine name."""
        self._engine_keys = dict(engine_keys or {})
        self._host = host
        self._config, self._threads, self._limit_s = config, threads, limit_s
        self._command = command
        self._order_lock = asyncio.Lock()
        self._process: _WorkerChild | None = None
        self._states: Mapping[str, str] = {}
        if host is not None:
            host.add_holder(self)
        self._unreported_moves: Mapping[str, Any] = {}
        """Moves of responses that were not passed on to a caller."""
        self._engine_users: set[tuple[str, str]] = set()
        """Engines and their users. They outlive a worker."""

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None before the first order and after its end."""
        return self._process.child.pid if self._process is not None else None

    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        """Score items and return the worker's response. `waiting`: services that are needed next, in order.

        Raises `WorkerDied` on every failure; the next call starts another worker.
        """
        order = {"op": "score", "service": service, "items": list(items), "waiting": list(waiting)}
        return await self._send_with_room(service, order, waiting, items=len(items))

    @property
    def limit_s(self) -> float:
        """Maximum seconds of an order."""
        return self._limit_s

    @property
    def order_lock(self) -> asyncio.Lock:
        """Lock of the worker's orders. For an order to several workers, acquire their locks in device order."""
        return self._order_lock

    async def ensure_process(self) -> int:
        """Return the process id for the next order. The caller must own `order_lock`. Raises `WorkerDied`."""
        return (await self._ensure_child()).child.pid

    async def score_rank(
        self,
        service: str,
        items: Sequence[Item],
        waiting: Sequence[str],
        rank_info: RankInfo,
        *,
        room: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Score items as one rank of a group. The entries are the first rank's. The caller must own `order_lock`.

        `room`: a file and its size in bytes, in reply to `HOST_FULL`.
        """
        order: dict[str, Any] = {"op": "score", "service": service, "items": list(items), "waiting": list(waiting)}
        order |= {"together": asdict(rank_info), "room": room}
        answer = await self._send(order, items=len(items) if rank_info.rank == 0 else 0)
        if rank_info.rank == 0:
            self._record_use(service, answer)
        return answer

    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Offer a new or changed service; workers that start later know it too.

        The first rank of a sharded service checks the sharding plan, so its worker is started.
        """
        async with self._order_lock:
            self._config = replace(self._config, services=self._config.services | {spec["name"]: spec})
            order = {"op": "offer", "spec": spec}
            is_checked = spec.get("options", {}).get("rank") == 0
            return await self._send(order) if is_checked else await self._send_if_running(order)

    async def forget(self, name: str) -> dict[str, Any]:
        """Remove a service from the device and from host memory."""
        async with self._order_lock:
            services = {each: spec for each, spec in self._config.services.items() if each != name}
            pinned = tuple(each for each in self._config.pinned if each != name)
            self._config = replace(self._config, services=services, pinned=pinned)
            if self._host is not None:
                self._host.forget(name)
            answer = await self._send_if_running({"op": "forget", "name": name})
        if self._host is not None:
            await self._host.release_unmapped()
        return answer

    async def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Pin or unpin a service. A pinned service stays on the device once it is there, across worker restarts."""
        async with self._order_lock:
            pinned = {*self._config.pinned, name} if on else {*self._config.pinned} - {name}
            self._config = replace(self._config, pinned=tuple(sorted(pinned)))
            return await self._send_if_running({"op": "pin", "name": name, "on": on})

    async def restore(self, name: str) -> dict[str, Any]:
        """Load a service onto the device, or wake its engine, before an action needs it."""
        if (engine := self._config.services.get(name, {}).get("engine")) is not None:
            return await self._wake_engine(engine)
        return await self._send_with_room(name, {"op": "restore", "name": name}, ())

    async def _send_with_room(
        self, service: str, order: dict[str, Any], waiting: Sequence[str], *, items: int | None = None
    ) -> dict[str, Any]:
        """Send an order. If the service must be read first, reserve host memory and send it again."""
        async with self._order_lock:
            answer = await self._send(order, items=items)
        size = 0
        while self._host is not None and answer.get("error") == HOST_FULL and answer["host_bytes"] != size:
            size = answer["host_bytes"]
            async with self._host.reserve((self.spec(service), size), waiting=waiting) as paths:
                if paths is not None:
                    async with self._order_lock:
                        answer = await self._send(order | {"room": (paths[0], size)}, items=items)
        self._record_use(service, answer)
        return as_no_room(answer)

    def _record_use(self, service: str, response: Mapping[str, Any]) -> None:
        """Record a use; services that are used often stay in host memory."""
        if self._host is not None and "error" not in response:
            self._host.record_use(service)

    @property
    def host(self) -> HostMemory | None:
        """Host memory that the worker shares with other workers; None if it has its own."""
        return self._host

    def spec(self, service: str) -> Mapping[str, Any]:
        """Return the specification of a service, with its name only if it is unknown."""
        return self._config.services.get(service, {"name": service})

    def has(self, service: str) -> bool:
        """Return True if the last response showed the service in host memory."""
        return self._states.get(service, ResidencyState.COLD) != ResidencyState.COLD

    def has_on_device(self, service: str) -> bool:
        """Return True if the service is on the device or being copied there."""
        return self._states.get(service) in (ResidencyState.RESTORING, ResidencyState.RESIDENT)

    def is_pinned(self, service: str) -> bool:
        """Return True if the service is pinned."""
        return service in self._config.pinned

    async def unload(self, service: str) -> dict[str, Any]:
        """Unload a service from host memory for another worker; see `HostWeightHolder`."""
        try:
            async with self._order_lock:
                return await self._send_if_running({"op": "cool", "name": service})
        except WorkerDied:
            return dict(EMPTY_RESPONSE)

    async def evict(self, name: str) -> dict[str, Any]:
        """Evict a service from the device."""
        async with self._order_lock:
            return await self._send_if_running({"op": "evict", "name": name})

    async def acquire_engine(
        self, engine: str, waiting: Sequence[str] = (), *, user: str = REQUESTS_USER
    ) -> dict[str, Any]:
        """Keep an engine awake until the same user calls `release_engine`. Repeated calls of a user count once.

        If `held` is false in the response, the engine is still waking up: call again.
        """
        async with self._order_lock:
            users = len(self._users_of(engine) | {user})
            answer = await self._send({"op": "hold", "engine": engine, "users": users, "waiting": list(waiting)})
            if answer.get("held"):
                self._engine_users.add((engine, user))
            return answer

    async def _wake_engine(self, engine: str) -> dict[str, Any]:
        while not (answer := await self.acquire_engine(engine, user=LOAD_USER)).get("held"):
            if "error" in answer:
                return answer
            await asyncio.sleep(WAKE_POLL_S)
        return await self.release_engine(engine, user=LOAD_USER)

    async def release_engine(self, engine: str, *, user: str = REQUESTS_USER) -> dict[str, Any]:
        """Release an engine. If the release is lost, the next order about the engine corrects the count of users."""
        self._engine_users.discard((engine, user))
        async with self._order_lock:
            return await self._send_if_running(
                {"op": "release", "engine": engine, "users": len(self._users_of(engine))}
            )

    def _users_of(self, engine: str) -> set[str]:
        return {holder for name, holder in self._engine_users if name == engine}

    async def check_engine(self, engine: str, *, restarted: bool = False) -> dict[str, Any]:
        """Check how much device memory an engine uses after an error."""
        async with self._order_lock:
            return await self._send({"op": "look_at", "engine": engine, "restarted": restarted})

    async def _send_if_running(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order if a worker runs. Otherwise the device is empty; the next worker gets the configuration."""
        return await self._send(order) if self._process is not None else dict(EMPTY_RESPONSE)

    async def _send(self, order: dict[str, Any], *, items: int | None = None) -> dict[str, Any]:
        process = await self._ensure_child()
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                write_message(process.writer, order)
                while (
                    said := await read_message(process.reader)
                ) == PROGRESS:  # a worker can contact several engines, each with its own timeout
                    limit.reschedule(asyncio.get_running_loop().time() + self._limit_s)
                answer = check_response(said, items=items)
            self._remember_state(answer)
            return self._merge_unreported_moves(answer)
        except TimeoutError:
            await self.end()
            raise WorkerDied(f"the worker did not respond within {self._limit_s:g} s") from None
        except OSError:
            raise WorkerDied(f"the worker ended with exit code {await self.end(grace_s=EXIT_GRACE_S)}") from None
        except Exception as error:
            await self.end()
            raise WorkerDied(f"the response of the worker is invalid: {type(error).__name__}: {error}") from error
        except asyncio.CancelledError:
            # Otherwise its response would be read as that of the next order.
            await self.end()
            raise

    def _merge_unreported_moves(self, response: dict[str, Any]) -> dict[str, Any]:
        """Merge the moves of an order that is sent again, so that each move is reported once."""
        moves = {
            name: self._unreported_moves[name] + each if name in self._unreported_moves else each
            for name, each in response["moves"].items()
        }
        is_given_again = response.get("error") == HOST_FULL
        self._unreported_moves = moves if is_given_again else {}
        return response | {"moves": asdict(ResidencyStats()) if is_given_again else moves}

    def _remember_state(self, response: Mapping[str, Any]) -> None:
        """Remember the services' states, and the sleeping engines for the next worker, which cannot ask all."""
        self._states = response["states"]
        asleep = {name for name, state in response.get("engines", {}).items() if state == ResidencyState.HOST}
        asleep |= {*self._config.asleep} & {*response.get("unheard", ())}  # unconfirmed engines only count as awake
        self._config = replace(self._config, asleep=tuple(sorted(asleep)))

    async def end(self, *, grace_s: float = 0.0) -> int | None:
        """End the worker. Return its exit code, or minus its signal. It can exit without a signal within `grace_s`."""
        process, self._process = self._process, None
        self._states = {}
        if process is None:
            return None
        # Abort instead of a clean close: a stopped process never reads the pending bytes.
        process.writer.transport.abort()
        if not grace_s:
            process.child.kill()
        return await asyncio.to_thread(_wait_for_exit, process.child, grace_s)

    async def _ensure_child(self) -> _WorkerChild:
        """Return the worker, or start one. A worker that died while idle is replaced, so no batch fails."""
        process = self._process
        if process is not None and (process.child.poll() is not None or process.reader.at_eof()):
            log.warning("an idle worker died with exit code %s", await self.end())
        try:
            return self._process or await self._start()
        except (OSError, subprocess.SubprocessError) as error:
            raise WorkerDied(f"the worker could not be started: {error}") from error

    async def _start(self) -> _WorkerChild:
        ours, its = socket.socketpair()
        with its:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                child = self._spawn(its)
            except BaseException:
                writer.transport.abort()
                raise
        self._process = _WorkerChild(child, reader, writer)
        log.info("worker %d started", child.pid)
        return self._process

    def _spawn(self, channel: socket.socket) -> "subprocess.Popen[bytes]":
        held = tuple(sorted(engine for engine, _ in self._engine_users))
        config = replace(self._config, shares_host=self._host is not None, held=held)
        argv = (*self._command, str(channel.fileno()), json.dumps(asdict(config)))
        env = child_environment(os.environ, devices=True) | ALLOCATOR_ENV
        env |= dict.fromkeys(THREAD_VARIABLES, str(self._threads)) | {
            TOKENIZER_PARALLELISM: str(self._threads > 1).lower()
        }
        env |= {ENGINE_KEYS: json.dumps(self._engine_keys)} if self._engine_keys else {}
        return spawn(argv, env=env, output=STDERR, pass_fds=(channel.fileno(),))


def as_no_room(response: dict[str, Any]) -> dict[str, Any]:
    """Return the response with `no_room` instead of `HOST_FULL`, because no more host memory can be reserved."""
    if response.get("error") != HOST_FULL:
        return response
    return response | {"error": "no_room", "message": f"{response['message']}, but all host memory is used"}


def _wait_for_exit(child: "subprocess.Popen[bytes]", grace_s: float) -> int:
    try:
        return child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
