"""The manager's end of a worker: started with the first order, started anew after it died."""

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
"""What numpy and torch ask, and the tokenizer."""
TOKENIZER_PARALLELISM = "TOKENIZERS_PARALLELISM"
"""Of texts beside each other; with one thread, the way to that thread and back is most of what it brings."""
ALLOCATOR_ENV = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""Of glibc: what a forward frees stays for the next one. To have it from the kernel anew, page by page, is a tenth to a
quarter of a forward on a CPU. A worker keeps up to 256 MiB so, beside the budgets of weights; larger arrays are given
back."""
STDERR = 2
EXIT_GRACE_S = 1.0
"""Its end of the channel is closed a little before its exit code is there."""
WAKE_POLL_S = 0.1
"""Between questions whether an engine woke up; the device has other things to do meanwhile."""
REQUESTS_USER, LOAD_USER = "requests", "load"
"""Who holds an engine: what judges are asked, or an operator's load until it is awake."""
WORKER_COMMAND = (sys.executable, "-P", "-m", "arl_gpu.worker.process")

EMPTY_RESPONSE: dict[str, Any] = {"states": {}, "used_bytes": 0, "moves": asdict(ResidencyStats()), "fitting": []}
"""What no worker has."""

log = logging.getLogger(__name__)


class WorkerDied(Exception):
    """It could not be started, or it ended or was ended before it answered."""


@dataclass(frozen=True, slots=True)
class _WorkerChild:
    child: "subprocess.Popen[bytes]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class WorkerClient:
    """One order at a time; others wait for it. `command` is given a file descriptor and the configuration."""

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
        """`host`: of all workers of the node. `engine_keys`: of engines that ask for one, by their names."""
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
        """What came and went, by answers that nobody else was given."""
        self._engine_users: set[tuple[str, str]] = set()
        """Of engines, by the engine's name: the account of who uses them, which outlives a worker."""

    @property
    def pid(self) -> int | None:
        """None before the first order, and after its end."""
        return self._process.child.pid if self._process is not None else None

    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        """What the worker answers. `waiting`: services that are needed next, in their order.

        Raises `WorkerDied`, whatever went wrong; the next call starts another.
        """
        order = {"op": "score", "service": service, "items": list(items), "waiting": list(waiting)}
        return await self._send_with_room(service, order, waiting, items=len(items))

    @property
    def limit_s(self) -> float:
        """The longest that an order may take."""
        return self._limit_s

    @property
    def order_lock(self) -> asyncio.Lock:
        """Held by whoever gives it an order. Whoever gives one to several workers at once holds theirs, in order."""
        return self._order_lock

    async def ensure_process(self) -> int:
        """The process that the next order goes to. For whoever has its turn. Raises `WorkerDied`."""
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
        """As `score`, together with others; the entries are the first rank's. For whoever has its turn.

        `room`: a file, and its bytes, for what `HOST_FULL` asked for.
        """
        order: dict[str, Any] = {"op": "score", "service": service, "items": list(items), "waiting": list(waiting)}
        order |= {"together": asdict(rank_info), "room": room}
        answer = await self._send(order, items=len(items) if rank_info.rank == 0 else 0)
        if rank_info.rank == 0:
            self._record_use(service, answer)
        return answer

    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        """A service, or a change of one. Known to each worker that is started from now on.

        The first rank of one that is split reads its plan, and so is started.
        """
        async with self._order_lock:
            self._config = replace(self._config, services=self._config.services | {spec["name"]: spec})
            order = {"op": "offer", "spec": spec}
            is_checked = spec.get("options", {}).get("rank") == 0
            return await self._send(order) if is_checked else await self._send_if_running(order)

    async def forget(self, name: str) -> dict[str, Any]:
        """Nothing of it stays, on the device and on the host."""
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
        """It stays on the device once it is there, whichever worker owns it."""
        async with self._order_lock:
            pinned = {*self._config.pinned, name} if on else {*self._config.pinned} - {name}
            self._config = replace(self._config, pinned=tuple(sorted(pinned)))
            return await self._send_if_running({"op": "pin", "name": name, "on": on})

    async def restore(self, name: str) -> dict[str, Any]:
        """Bring it onto the device before anybody scores with it."""
        if (engine := self._config.services.get(name, {}).get("engine")) is not None:
            return await self._wake_engine(engine)
        return await self._send_with_room(name, {"op": "restore", "name": name}, ())

    async def _send_with_room(
        self, service: str, order: dict[str, Any], waiting: Sequence[str], *, items: int | None = None
    ) -> dict[str, Any]:
        """And again with room in host memory for what is to be read first, if there is."""
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
        """What is used often stays in host memory."""
        if self._host is not None and "error" not in response:
            self._host.record_use(service)

    @property
    def host(self) -> HostMemory | None:
        """Memory that its weights share with those of other workers."""
        return self._host

    def spec(self, service: str) -> Mapping[str, Any]:
        return self._config.services.get(service, {"name": service})

    def has(self, service: str) -> bool:
        """In host memory, by what was heard last."""
        return self._states.get(service, ResidencyState.COLD) != ResidencyState.COLD

    def has_on_device(self, service: str) -> bool:
        return self._states.get(service) in (ResidencyState.RESTORING, ResidencyState.RESIDENT)

    def is_pinned(self, service: str) -> bool:
        return service in self._config.pinned

    async def unload(self, service: str) -> dict[str, Any]:
        """Out of host memory, for another worker; `arl_gpu.worker.host_memory.Holder`."""
        try:
            async with self._order_lock:
                return await self._send_if_running({"op": "cool", "name": service})
        except WorkerDied:
            return dict(EMPTY_RESPONSE)

    async def evict(self, name: str) -> dict[str, Any]:
        """Take it off the device."""
        async with self._order_lock:
            return await self._send_if_running({"op": "evict", "name": name})

    async def acquire_engine(
        self, engine: str, waiting: Sequence[str] = (), *, user: str = REQUESTS_USER
    ) -> dict[str, Any]:
        """Have an engine awake until `release` by the same holder, who may hold it already.

        `held` says whether it is, or still wakes up: ask again then.
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
        """What it does not hold is released already. Should this not be told, the next order about the engine does."""
        self._engine_users.discard((engine, user))
        async with self._order_lock:
            return await self._send_if_running(
                {"op": "release", "engine": engine, "users": len(self._users_of(engine))}
            )

    def _users_of(self, engine: str) -> set[str]:
        return {holder for name, holder in self._engine_users if name == engine}

    async def check_engine(self, engine: str, *, restarted: bool = False) -> dict[str, Any]:
        """Find out what it holds of the device, after trouble with it."""
        async with self._order_lock:
            return await self._send({"op": "look_at", "engine": engine, "restarted": restarted})

    async def _send_if_running(self, order: dict[str, Any]) -> dict[str, Any]:
        """Nothing is on a device that no worker owns, and the next one is told at its start."""
        return await self._send(order) if self._process is not None else dict(EMPTY_RESPONSE)

    async def _send(self, order: dict[str, Any], *, items: int | None = None) -> dict[str, Any]:
        process = await self._ensure_child()
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                write_message(process.writer, order)
                while (
                    said := await read_message(process.reader)
                ) == PROGRESS:  # of several engines, each may take its time
                    limit.reschedule(asyncio.get_running_loop().time() + self._limit_s)
                answer = check_response(said, items=items)
            self._remember_state(answer)
            return self._merge_unreported_moves(answer)
        except TimeoutError:
            await self.end()
            raise WorkerDied(f"it did not answer within {self._limit_s:g} s") from None
        except OSError:
            raise WorkerDied(f"it ended with {await self.end(grace_s=EXIT_GRACE_S)}") from None
        except Exception as error:
            await self.end()
            raise WorkerDied(f"its answer can't be read: {type(error).__name__}: {error}") from error
        except asyncio.CancelledError:
            # Its answer would be taken for that of the next order.
            await self.end()
            raise

    def _merge_unreported_moves(self, response: dict[str, Any]) -> dict[str, Any]:
        """An order that is given again, with room, is one to whoever gave it; what came and went is said once."""
        moves = {
            name: self._unreported_moves[name] + each if name in self._unreported_moves else each
            for name, each in response["moves"].items()
        }
        is_given_again = response.get("error") == HOST_FULL
        self._unreported_moves = moves if is_given_again else {}
        return response | {"moves": asdict(ResidencyStats()) if is_given_again else moves}

    def _remember_state(self, response: Mapping[str, Any]) -> None:
        """What is in memory; and what the next worker has to know, and can't ask all engines about."""
        self._states = response["states"]
        asleep = {name for name, state in response.get("engines", {}).items() if state == ResidencyState.HOST}
        asleep |= {*self._config.asleep} & {*response.get("unheard", ())}  # that it counts as awake says nothing of it
        self._config = replace(self._config, asleep=tuple(sorted(asleep)))

    async def end(self, *, grace_s: float = 0.0) -> int | None:
        """Its exit code, or minus the signal that ended it. It may end by itself within `grace_s`."""
        process, self._process = self._process, None
        self._states = {}
        if process is None:
            return None
        # Not closed in order: one that is stopped never reads what is still to be written.
        process.writer.transport.abort()
        if not grace_s:
            process.child.kill()
        return await asyncio.to_thread(_wait_for_exit, process.child, grace_s)

    async def _ensure_child(self) -> _WorkerChild:
        """One that died while it was idle costs nobody a batch."""
        process = self._process
        if process is not None and (process.child.poll() is not None or process.reader.at_eof()):
            log.warning("the worker died while it was idle, with %s", await self.end())
        try:
            return self._process or await self._start()
        except (OSError, subprocess.SubprocessError) as error:
            raise WorkerDied(f"it could not be started: {error}") from error

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
    """The same answer, where nobody will be asked for room any more."""
    if response.get("error") != HOST_FULL:
        return response
    return response | {"error": "no_room", "message": f"{response['message']}, and all of it is used"}


def _wait_for_exit(child: "subprocess.Popen[bytes]", grace_s: float) -> int:
    try:
        return child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
