"""Everything a launcher holds: environments, running attempts, and reports until they are acknowledged."""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from arl_core.fence import Fence
from arl_cpu.executor import (
    EnvironmentStatus,
    Event,
    ExecSpec,
    Fed,
    Output,
    Report,
    Resize,
    RunningAttempt,
)
from arl_cpu.templates.records import HOST

from .attempt import Attempt, Cause
from .cells import Host, Pool
from .environment import Environment
from .following import Answer, Offsets
from .processes import Process
from .protocol import fence_from
from .templating import NoTemplate, open_template
from .workers import Workers

__all__ = ["Node"]

_REMEMBERED_FENCES = 10_000
_WORKER_LOOK_S = 0.02


class Node:
    """Starts, stops and reports attempts. Idempotent by fence."""

    def __init__(self, host: Host, pool: Pool, on_event: Callable[[Event], None]) -> None:
        self._host, self._pool = host, pool
        self.on_event = on_event
        self.workers = Workers(host)
        self._persistent: dict[UUID, Environment] = {}
        self._all: set[Environment] = set()
        self._running: dict[Fence, Environment] = {}
        self._reports: dict[Fence, Report] = {}
        self._acknowledged: dict[Fence, None] = {}
        self._waiting: list[tuple[frozenset[Environment], Callable[[], None]]] = []

    @property
    def environments(self) -> tuple[UUID, ...]:
        return tuple(self._persistent)

    @property
    def running(self) -> tuple[RunningAttempt, ...]:
        return tuple(
            _running_attempt(environment.attempt, environment.spec.id)
            for environment in self._running.values()
            if environment.attempt is not None
        )

    @property
    def reports(self) -> tuple[Report, ...]:
        return tuple(self._reports.values())

    def start(self, specs: Iterable[ExecSpec]) -> None:
        for spec in specs:
            known = (self._running, self._reports, self._acknowledged)
            if not any(spec.fence in fences for fences in known):
                self._begin(spec)

    def work(self, asker: socket.socket, message: Mapping[str, Any]) -> None:
        """On the files of a persistent environment in which nothing runs; all else about it goes over that socket."""
        fence = fence_from(message["fence"])
        environment = self._persistent.get(UUID(message["environment"]))
        self.workers.begin(asker, fence, environment, message["work"])

    def processes(self, identifier: UUID) -> list[Process]:
        """The living processes of a persistent environment."""
        environment = self._persistent.get(identifier)
        return environment.processes() if environment is not None else []

    def resize(self, resizes: Iterable[Resize]) -> list[Fence]:
        """Those that run here, now with what their highest `amounts_seq` says."""
        return [resize.fence for resize in resizes if self._resize(resize)]

    def follow(self, fence: Fence, after: Offsets, answer: Answer) -> Callable[[], None]:
        """Answer once, as soon as there is something beyond the offsets; what comes back withdraws the question."""
        if (report := self._reports.get(fence)) is not None:
            stdout, stderr = report.stdout.portion(after[0]), report.stderr.portion(after[1])
            answer(Output(stdout, stderr, ended=True))
        elif (attempt := self._attempt(fence)) is not None:
            return attempt.followers.ask(after, answer)
        else:
            answer(None)
        return lambda: None

    def feed(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> Fed:
        """Give a running attempt input, all or nothing."""
        if (attempt := self._attempt(fence)) is None:
            return Fed("absent")
        if attempt.feed is None or not attempt.spec.stdin_open:
            return Fed("unopened")
        return attempt.feed.take(data, offset=offset, end=end)

    def kill(self, fences: Iterable[Fence]) -> None:
        for fence in fences:
            if (environment := self._running.get(fence)) is not None:
                environment.stop("cancelled")
            else:
                self.workers.kill(fence)

    def destroy(self, identifiers: Iterable[UUID], done: Callable[[], None]) -> None:
        """`done` once none of them has a living process."""
        ending = [each for each in self._all if each.spec.id in frozenset(identifiers)]
        self._end(ending, "cancelled", done)

    def end_all(self, done: Callable[[], None]) -> None:
        """Those that stand ready, too."""
        self._end(list(self._all), "stopped", lambda: self._pool.end(done))

    def acknowledge(self, fences: Iterable[Fence]) -> None:
        for fence in fences:
            if self._reports.pop(fence, None) is not None:
                self._acknowledged[fence] = None
        while len(self._acknowledged) > _REMEMBERED_FENCES:
            del self._acknowledged[next(iter(self._acknowledged))]

    def _begin(self, spec: ExecSpec) -> None:
        if (spec.argv is not None and spec.source is not None) or spec.argv == ():
            self._refuse(spec, "setup_failed", "at most one of argv and source must be given")
            return
        environment = self._persistent.get(spec.environment.id)
        if environment is not None and (environment.attempt is not None or environment.is_ending):
            self._refuse(spec, "environment_busy", "another action runs in the environment, or it is being destroyed")
            return
        if self.workers.is_at(spec.environment.id):
            # Of a manager that is no more: it was killed, and is gone in a moment.
            self._host.loop.after(_WORKER_LOOK_S, lambda: self.start([spec]))
            return
        if environment is None and not spec.environment.may_make:
            self._reported(_lost(spec))
            return
        if environment is not None and spec.environment.template not in (None, environment.spec.template):
            message = f"the environment was made from the template {environment.spec.template!r}"
            self._refuse(spec, "setup_failed", f"{message}, not from {spec.environment.template!r}")
            return
        try:
            environment = environment or self._make(spec)
        except (OSError, NoTemplate) as error:
            self._refuse(spec, "setup_failed", str(error))
            return
        try:
            attempt = Attempt(spec)
        except OSError as error:
            self._refuse(spec, "setup_failed", f"no pipe for the output: {error}")
            if spec.environment.scope == "ephemeral":
                environment.end()
            return
        self._running[spec.fence] = environment
        environment.begin(attempt)

    def _attempt(self, fence: Fence) -> Attempt | None:
        environment = self._running.get(fence)
        return environment.attempt if environment is not None else None

    def _resize(self, resize: Resize) -> bool:
        environment = self._running.get(resize.fence)
        return environment is not None and environment.resize(resize)

    def _make(self, first: ExecSpec) -> Environment:
        """Raises OSError, or NoTemplate."""
        name = first.environment.template or HOST
        spec = replace(first.environment, template=name)
        template = open_template(self._host.templates, self._host.driver, name)
        tell = (self._reported, self._gone)
        try:
            environment = Environment(
                spec, self._host, self._pool, *tell, template, runs_source=first.source is not None
            )
        except OSError:
            if template is not None:
                template.close()
            raise
        self._all.add(environment)
        if spec.scope == "trajectory":
            self._persistent[spec.id] = environment
        return environment

    def _refuse(self, spec: ExecSpec, reason: str, message: str) -> None:
        self._reported(Report(fence=spec.fence, outcome="infra_error", reason=reason, message=message))

    def _reported(self, report: Report) -> None:
        self._running.pop(report.fence, None)
        self._reports[report.fence] = report
        self.on_event(report)

    def _gone(self, environment: Environment, loss: str | None) -> None:
        self._all.discard(environment)
        if self._persistent.get(environment.spec.id) is environment:
            del self._persistent[environment.spec.id]
            if loss is not None:
                self.on_event(EnvironmentStatus(id=environment.spec.id, lost_reason=loss))
        waiting, self._waiting = self._waiting, []
        for environments, done in waiting:
            self._wait(environments - {environment}, done)

    def _end(self, environments: Sequence[Environment], cause: Cause, done: Callable[[], None]) -> None:
        for environment in environments:
            environment.end(cause)
        self._wait(frozenset(environments) & self._all, done)

    def _wait(self, environments: frozenset[Environment], done: Callable[[], None]) -> None:
        if environments:
            self._waiting.append((environments, done))
        else:
            done()


def _running_attempt(attempt: Attempt, environment: UUID) -> RunningAttempt:
    given = attempt.given
    return RunningAttempt(
        given.fence, environment, given.cores, cpu_milli=given.cpu_milli, amounts_seq=given.amounts_seq
    )


def _lost(spec: ExecSpec) -> Report:
    return Report(
        fence=spec.fence,
        outcome="infra_error",
        reason="environment_lost",
        message="the environment is not there any more; an empty one would be another",
        environment_lost=True,
    )
