"""Items that an engine answers: each a request of its own, while the engine is held awake on its device.

Nothing is sent to an engine that may be asleep. It is held from its first request to its last and may leave the device
in between. Whoever needs its room is waited for: nothing new is begun meanwhile, and what is in flight ends.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from arl_core.residency import Residence
from arl_gpu.completions import Completions, EngineFailed, ItemRefused
from arl_gpu.jobs import Job
from arl_gpu.kinds.judge import Judge, NotAsked, is_chat
from arl_gpu.kinds.model import Entry, failed
from arl_gpu.lanes import Lane, Request
from arl_gpu.pauses import Pause
from arl_gpu.services import ServiceFiles
from arl_gpu.settings import EngineSettings
from arl_gpu.turns import Batch
from arl_gpu.worker_client import WorkerDied
from arl_wire.services import ServiceOptions

__all__ = ["Board", "EngineOwner", "Judging"]

LOOK_S = 2.0
"""Between looks at an engine's health."""
LONGEST_PAUSE_S = 300.0
"""Between questions that may cost a device's worker more than an answer."""
WAKING_S = 0.05
"""Between questions whether it is awake by now."""
COMPLETED = 16 << 20
"""Bytes of all completions of an action, which are settled in one statement."""
ENDS_IT = frozenset({"engine_gone", "engine_unreachable"})
"""What the engine itself failed of, and not a single answer of it."""
DIED = "worker_died"
TOO_LARGE = "engine_too_large"
"""Nothing mends that but other settings, so nobody waits."""
TROUBLE = frozenset({"wake_failed", "engine_trouble", TOO_LARGE})
"""What an engine could not be had for that is its own fault."""
OF_AN_ANSWER = frozenset({"engine_failed", "engine_timeout", "engine_broke_off"})

log = logging.getLogger(__name__)


class EngineOwner(Protocol):
    """Of the device that an engine is on. Answers say what is there, or have an `error`. Raises `WorkerDied`."""

    async def hold(self, engine: str, waiting: Sequence[str] = ()) -> dict[str, Any]: ...
    async def release(self, engine: str) -> dict[str, Any]: ...
    async def look_at(self, engine: str, *, restarted: bool = False) -> dict[str, Any]: ...


class Board(Protocol):
    """Where jobs come from, and their items' entries go."""

    def runs(self, job: Job) -> None: ...
    def answered(self, job: Job, at: int, entry: Entry) -> None: ...
    def broke(self, job: Job, reason: str, message: str) -> None: ...
    def give_up(self, services: Collection[str], reason: str, message: str) -> None: ...
    def is_over(self, job: Job) -> bool: ...
    def waiting_on(self, number: int) -> Sequence[str]: ...
    def learn(self, number: int, answer: Mapping[str, Any]) -> None: ...
    def look_again(self) -> None: ...


class Judging:
    """`judges`: the services that engines serve, as they are offered now."""

    def __init__(
        self,
        engines: Mapping[str, EngineSettings],
        owners: Sequence[EngineOwner],
        judges: Callable[[], Iterable[ServiceFiles]],
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._owners, self._judges, self._look_s = owners, judges, look_s
        self._lanes = {
            name: Lane(
                name,
                each,
                Completions(each),
                asyncio.Semaphore(each.requests),
                Pause(look_s, longest_s=LONGEST_PAUSE_S),
            )
            for name, each in engines.items()
        }
        self._board: Board
        self._tasks: set[asyncio.Task[None]] = set()
        self._released = asyncio.Condition()

    def start(self, board: Board) -> None:
        self._board = board
        for lane in self._lanes.values():
            self._in_background(self._watch(lane))

    async def stop(self) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes.values():
            await lane.completions.close()

    def serving(self, service: str) -> ServiceFiles | None:
        """None where a worker computes it."""
        return next((each for each in self._judges() if each.name == service), None) if self._lanes else None

    def health(self, service: ServiceFiles) -> str:
        """`engine_stays` is trouble of whoever needs the room, and none of those who are served by it."""
        if (lane := self._lanes.get(service.engine or "")) is None:
            return "ok"
        stays = "ok" if lane.refusal is None else f"engine_stays: {lane.refusal}"
        return stays if lane.trouble is None else lane.trouble

    def hear(self, number: int, answer: Mapping[str, Any]) -> None:
        """Of a device's worker, whatever it was asked."""
        for lane in self._lanes.values():
            if lane.settings.device == number and "unheard" in answer:
                lane.is_unheard = lane.name in answer["unheard"]
                lane.refusal = answer.get("refusals", {}).get(lane.name)
                if answer.get("engines", {}).get(lane.name) == Residence.HOST:
                    lane.pause.reset()

    def closed(self, number: int, *, makes_room: bool) -> set[str]:
        """Services of which a device begins nothing now. `makes_room`: something else needs what engines hold."""
        return (
            {each.name for each in self._judges() if self._is_closed(each, number, makes_room)}
            if self._lanes
            else set()
        )

    def is_busy(self, number: int) -> bool:
        """An engine of this device is in use, or on its way: what it holds will come free."""
        return any(lane.is_busy for lane in self._lanes.values() if lane.settings.device == number)

    def begin(self, files: ServiceFiles, batch: Batch) -> None:
        """Every item ends in one entry, or its action in one failure, unless it is over before."""
        lane, options = self._lanes[files.engine or ""], ServiceOptions.model_validate(files.options)
        judge = Judge(options.judge)
        lane.pending.extend(Request(job, at, judge) for job, start, stop in batch for at in range(start, stop))
        self._in_background(self._send(lane))

    def _is_closed(self, files: ServiceFiles, number: int, makes_room: bool) -> bool:
        lane = self._lanes[files.engine or ""]
        others = (each for each in self._lanes.values() if each is not lane and each.settings.device == number)
        return (
            lane.settings.device != number
            or lane.trouble is not None
            or bool(lane.pending)
            or lane.running >= lane.settings.requests
            or makes_room
            or any(each.lacks_room for each in others)
        )

    async def _send(self, lane: Lane) -> None:
        async with lane.changing:
            try:
                if lane.pending and not lane.is_held:
                    await self._wake(lane)
                while lane.pending:
                    if not self._board.is_over(lane.pending[0].job):
                        self._begin_one(lane, lane.pending[0])
                    lane.pending.popleft()
            except Exception as error:  # noqa: BLE001 - what waits has no time of its own yet, so it would for ever
                self._break(lane, "order_failed", f"{type(error).__name__}: {error}")
        await self._rest(lane)

    async def _wake(self, lane: Lane) -> None:
        """It is held from now on; or everything that waited for it has failed."""
        while not lane.is_held:
            try:
                answer = await self._hold(lane)
            except WorkerDied as error:
                lane.may_count = False
                self._break(lane, DIED, str(error))
                return
            if "error" not in answer:
                await asyncio.sleep(0 if lane.is_held else WAKING_S)
            elif answer["error"] != "no_room" or not await self._others_left(lane):
                self._break(lane, answer["error"], answer["message"])
                return

    async def _hold(self, lane: Lane) -> Mapping[str, Any]:
        """What fails once it is held leaves it held, so that it is released."""
        number = lane.settings.device
        lane.may_count = True
        answer = await self._owners[number].hold(lane.name, self._board.waiting_on(number))
        lane.is_held = lane.may_count = bool(answer.get("held"))
        self._board.learn(number, answer)
        return answer

    async def _others_left(self, lane: Lane) -> bool:
        """Once an engine that held what this one needs is released; False where none does."""
        others = [e for e in self._lanes.values() if e is not lane and e.settings.device == lane.settings.device]
        busy = [each for each in others if each.is_busy]
        if not busy:
            return False
        lane.lacks_room = True
        try:
            async with self._released:
                await self._released.wait_for(lambda: not all(each.is_busy for each in busy))
        finally:
            lane.lacks_room = False
        return True

    def _break(self, lane: Lane, reason: str, message: str) -> None:
        """Of what waited for it; no room is no fault of the engine's."""
        log.warning("engine %s can't be had: %s: %s", lane.name, reason, message)
        if reason in TROUBLE:
            lane.trouble = f"{reason}: {message}"
        waited = [request.job for request in lane.pending]
        lane.pending.clear()
        for job in waited:
            self._board.broke(job, reason, message)

    def _begin_one(self, lane: Lane, request: Request) -> None:
        """Counted until its task has ended, which a cancel may do before its first step."""
        if (job := request.job).runs_since is None and job.begun is not None:
            job.timeline.add("wake engine", job.begun, time.monotonic(), engine=lane.name)
        self._board.runs(job)
        lane.running += 1
        task = self._in_background(self._ask(lane, request))
        job.tasks.add(task)
        task.add_done_callback(lambda ended: self._end_one(lane, job, ended))

    def _end_one(self, lane: Lane, job: Job, task: "asyncio.Task[None]") -> None:
        job.tasks.discard(task)
        lane.running -= 1
        self._board.look_again()
        if not lane.running:
            self._in_background(self._rest(lane))

    async def _ask(self, lane: Lane, request: Request) -> None:
        job, begun = request.job, time.monotonic()
        try:
            entry = await self._asked_twice(lane, request)
        except EngineFailed as error:
            if error.reason in ENDS_IT:
                lane.trouble = lane.trouble or f"{error.reason}: {error}"
                lane.is_gone = lane.is_gone or error.reason == "engine_gone"
                _forget_this(job)
                self._board.broke(job, error.reason, str(error))
                return
            entry = failed(error.reason, str(error))
        except Exception as error:
            log.exception("an item was not judged")
            _forget_this(job)
            self._board.broke(job, "order_failed", f"{type(error).__name__}: {error}")
            return
        _forget_this(job)
        code = entry["error"]["code"] if "error" in entry else None
        job.timeline.add("completion", begun, time.monotonic(), engine=lane.name, item=request.at, error=code)
        self._take(request, entry)

    async def _asked_twice(self, lane: Lane, request: Request) -> Entry:
        """Where the connection broke off: whether the engine ended shows when it is asked again."""
        try:
            return await self._entry(lane, request)
        except EngineFailed as error:
            if error.reason != "engine_broke_off":
                raise
        return await self._entry(lane, request)

    def _take(self, request: Request, entry: Entry) -> None:
        """Its failure is an item's, unless no item has a score: then the whole is the engine's, and may be retried."""
        job = request.job
        entries = [*job.done.values(), entry] if len(job.done) + 1 == len(job.items) else [{}]
        errors = [each.get("error") for each in entries]
        of_engine = next((error for error in errors if error is not None and error["code"] in OF_AN_ANSWER), None)
        if of_engine is not None and None not in errors:
            self._board.broke(job, of_engine["code"], of_engine["message"])
        else:
            self._board.answered(job, request.at, entry)

    async def _entry(self, lane: Lane, request: Request) -> Entry:
        try:
            body = request.judge.request(request.item)
            async with lane.limit:
                answer = await lane.completions.complete(body)
        except NotAsked as error:
            return failed(error.code, str(error))
        except ItemRefused as error:
            return failed("refused", str(error))
        if is_chat(request.item):
            request.job.completed_bytes += answer.size
            if request.job.completed_bytes > COMPLETED:
                return failed(
                    "too_much_answered", f"an action's completions have at most {COMPLETED >> 20} MiB together"
                )
            return {"completion": answer.completion}
        # A pattern may take its time, in which nodes and engines are to be heard.
        return await asyncio.to_thread(request.judge.entry, answer.choices)

    async def _rest(self, lane: Lane) -> None:
        """Where nothing is in flight any more, it may leave its device."""
        async with lane.changing:
            if lane.running or lane.pending:
                return
            if lane.may_count:
                await self._release(lane)
        async with self._released:
            self._released.notify_all()
        self._board.look_again()

    async def _release(self, lane: Lane) -> None:
        number, lane.is_held = lane.settings.device, False
        try:
            answer = await self._owners[number].release(lane.name)
        except WorkerDied as error:
            log.warning("engine %s was released by nobody: %s", lane.name, error)
            lane.may_count = False
            return
        lane.may_count = False
        self._board.learn(number, answer)

    async def _watch(self, lane: Lane) -> None:
        while True:
            try:
                await self._look(lane)
                self._bound(lane)
                if lane.may_count and not (lane.running or lane.pending):
                    await self._rest(lane)  # again, where something went wrong with its release
            except Exception:
                log.exception("engine %s could not be looked after", lane.name)
            await asyncio.sleep(self._look_s)

    def _bound(self, lane: Lane) -> None:
        """Nobody waits for ever for one that does not come back."""
        if lane.trouble is None:
            lane.well_at = time.monotonic()
            return
        reason, _, message = lane.trouble.partition(": ")
        if reason == TOO_LARGE or time.monotonic() - lane.well_at > lane.settings.patience_s:
            services = {each.name for each in self._judges() if each.engine == lane.name}
            self._board.give_up(services, reason, message)

    async def _look(self, lane: Lane) -> None:
        """One that was in trouble is used again once it answers, and once it is known what it holds."""
        try:
            await lane.completions.look()
        except (EngineFailed, ItemRefused) as error:
            reason = error.reason if isinstance(error, EngineFailed) else "engine_failed"
            lane.is_gone = lane.is_gone or reason == "engine_gone"
            if lane.trouble is None:
                log.warning("engine %s is not well: %s: %s", lane.name, reason, error)
            lane.trouble = f"{reason}: {error}"
            return
        async with lane.changing:
            if self._is_asked_about(lane) and not lane.is_held:
                await self._look_at(lane)

    def _is_asked_about(self, lane: Lane) -> bool:
        """Also without a judge: what it holds counts against whatever else is to come onto its device."""
        if lane.trouble is not None and not lane.trouble.startswith(DIED):
            return True
        return (lane.trouble is not None or lane.is_unheard) and lane.pause.is_over

    async def _look_at(self, lane: Lane) -> None:
        number, was_well = lane.settings.device, lane.trouble is None
        try:
            answer = await self._owners[number].look_at(lane.name, restarted=lane.is_gone)
        except WorkerDied as error:
            log.warning("engine %s: the worker of its device died: %s", lane.name, error)
            lane.trouble = f"{DIED}: {error}"
            lane.pause.begin()
            return
        self._board.learn(number, answer)
        if was_well:  # then it may stay anew as soon as somebody needs its room
            lane.pause.begin()
        else:
            lane.pause.reset()
        lane.is_gone = False
        lane.trouble = f"{answer['error']}: {answer['message']}" if "error" in answer else None
        self._board.look_again()

    def _in_background(self, doing: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(doing, name="judging")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("judging went wrong", exc_info=error)


def _forget_this(job: Job) -> None:
    """Before it ends the job, which ends its tasks."""
    if (task := asyncio.current_task()) is not None:
        job.tasks.discard(task)
