"""The state of a launcher: environments, running attempts, and reports until they are acknowledged."""

import errno
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from arl_core.domain.model import Fence
from arl_cpu.contract.environment_access import EnvironmentSocketError
from arl_cpu.contract.executor import (
    AttemptResize,
    CapturedOutput,
    EnvironmentLostEvent,
    ExecSpec,
    ExecutionReport,
    ExecutorEvent,
    FeedResult,
    RunningAttempt,
    UnusedCoresEvent,
)
from arl_cpu.contract.launcher_protocol import decode_fence
from arl_cpu.launcher.cpu_sharing.environment_cpu import NICE_WEIGHTS
from arl_cpu.launcher.cpu_sharing.shared_attempts import SharedAttempts
from arl_cpu.launcher.linux.namespace_sockets import create_socket
from arl_cpu.launcher.linux.processes import ProcessInfo
from arl_cpu.launcher.sandbox.attempt import SandboxAttempt, StopCause
from arl_cpu.launcher.sandbox.environment import SandboxEnvironment
from arl_cpu.launcher.sandbox.environment_template import TemplateUnavailable, open_template
from arl_cpu.launcher.sandbox.file_operations import FileOperationRunner
from arl_cpu.launcher.sandbox.output_followers import OutputCallback, OutputOffsets
from arl_cpu.launcher.sandbox.sandbox import SandboxPool
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost
from arl_cpu.templates.template import HOST_TEMPLATE

__all__ = ["LauncherNode"]

_MAX_ACKNOWLEDGED_FENCES = 10_000
_WORKER_POLL_S = 0.02


class LauncherNode:
    """The manager of the launcher's attempts: starts, stops and reports them. Idempotent by fence."""

    def __init__(self, host: SandboxHost, pool: SandboxPool, on_event: Callable[[ExecutorEvent], None]) -> None:
        self._host, self._pool = host, pool
        self.on_event = on_event
        self.workers = FileOperationRunner(host)
        self._persistent: dict[UUID, SandboxEnvironment] = {}
        self._all: set[SandboxEnvironment] = set()
        self._running: dict[Fence, SandboxEnvironment] = {}
        self._reports: dict[Fence, ExecutionReport] = {}
        self._acknowledged: dict[Fence, None] = {}
        weights = host.cgroup_tree.weights if host.cgroup_tree is not None else NICE_WEIGHTS
        self.shared_attempts = SharedAttempts(host.loop, weights, self._report_unused)
        self._shared_cores: tuple[int, ...] | None = None
        """Cores of attempts that share them; None before the manager has set them."""
        self._end_waiters: list[tuple[frozenset[SandboxEnvironment], Callable[[], None]]] = []

    @property
    def environments(self) -> tuple[UUID, ...]:
        """Return the ids of the persistent environments."""
        return tuple(self._persistent)

    @property
    def running(self) -> tuple[RunningAttempt, ...]:
        """Return the running attempts."""
        return tuple(
            _running_attempt(environment.attempt, environment.spec.id)
            for environment in self._running.values()
            if environment.attempt is not None
        )

    @property
    def reports(self) -> tuple[ExecutionReport, ...]:
        """Return the reports that are not acknowledged."""
        return tuple(self._reports.values())

    def start(self, specs: Iterable[ExecSpec]) -> None:
        """Start attempts; known fences are ignored."""
        for spec in specs:
            known = (self._running, self._reports, self._acknowledged)
            if not any(spec.fence in fences for fences in known):
                self._begin(spec)

    def start_file_operation(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        """Start an operation on the files of an idle persistent environment. All later messages use this socket."""
        fence = decode_fence(message["fence"])
        environment = self._persistent.get(UUID(message["environment"]))
        self.workers.start(connection, fence, environment, message["work"])

    def create_socket(self, identifier: UUID, family: socket.AddressFamily) -> socket.socket:
        """Return a TCP socket, not connected, in the network namespace of an environment.

        Raises EnvironmentSocketError.
        """
        environment = self._persistent.get(identifier)
        sandbox = environment.ready_sandbox if environment is not None else None
        if sandbox is None:
            raise EnvironmentSocketError("lost", "the environment no longer exists, or is not ready")
        if not self._host.driver.has_zygote_namespaces:
            driver = self._host.driver.name
            raise EnvironmentSocketError("not_enforced", f"environments of the {driver} driver have no own network")
        try:
            network = sandbox.open_network()
            try:
                return create_socket(network, family)
            finally:
                os.close(network)
        except OSError as error:
            code = "no_family" if error.errno == errno.EAFNOSUPPORT else "failed"
            raise EnvironmentSocketError(code, f"no socket could be created in the environment: {error}") from None

    def processes(self, identifier: UUID) -> list[ProcessInfo]:
        """Return the living processes of a persistent environment."""
        environment = self._persistent.get(identifier)
        return environment.processes() if environment is not None else []

    def resize(self, resizes: Iterable[AttemptResize]) -> list[Fence]:
        """Resize attempts. Return the fences that run here with the cores of their highest `amounts_seq`."""
        return [resize.fence for resize in resizes if self._resize(resize)]

    def set_shared_cores(self, cores: Sequence[int]) -> None:
        """Set the cores of running and later attempts that share cores."""
        self._shared_cores = tuple(cores)
        for environment in tuple(self._running.values()):
            environment.set_shared_cores(cores)
        self.shared_attempts.set_cores(cores)

    def set_networks(self, networks: Mapping[str, Any]) -> None:
        """Set the networks of persistent environments by id: version and network as JSON."""
        for id, (version, network) in networks.items():
            if (environment := self._persistent.get(UUID(id))) is not None and not environment.is_ending:
                environment.network.set_own(version, network)

    def set_critical(self, changes: Mapping[Fence, bool]) -> None:
        """Set whether running attempts belong to critical trajectories."""
        for fence, is_critical in changes.items():
            if (attempt := self._attempt(fence)) is not None:
                attempt.set_critical(is_critical)
        self.shared_attempts.renew_weights()

    def poll_output(self, fence: Fence, after: OutputOffsets, callback: OutputCallback) -> Callable[[], None]:
        """Call back once, when there is output beyond the offsets or the attempt ends.

        Return a function that cancels it.
        """
        if (report := self._reports.get(fence)) is not None:
            stdout, stderr = report.stdout.chunk_from(after[0]), report.stderr.chunk_from(after[1])
            callback(CapturedOutput(stdout, stderr, ended=True))
        elif (attempt := self._attempt(fence)) is not None:
            return attempt.followers.subscribe(after, callback)
        else:
            callback(None)
        return lambda: None

    def feed_stdin(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> FeedResult:
        """Append all of `data` to the input of a running attempt, or nothing."""
        if (attempt := self._attempt(fence)) is None:
            return FeedResult("absent")
        if attempt.stdin_feed is None or not attempt.spec.stdin_open:
            return FeedResult("unopened")
        return attempt.stdin_feed.append(data, offset=offset, end=end)

    def kill(self, fences: Iterable[Fence]) -> None:
        """Stop attempts and file operations of these fences; unknown ones are ignored."""
        for fence in fences:
            if (environment := self._running.get(fence)) is not None:
                environment.stop("cancelled")
            else:
                self.workers.kill(fence)

    def destroy(self, identifiers: Iterable[UUID], done: Callable[[], None]) -> None:
        """End environments and call `done` once none of them has a living process."""
        ending = [each for each in self._all if each.spec.id in frozenset(identifiers)]
        self._end_environments(ending, "cancelled", done)

    def end_all(self, done: Callable[[], None]) -> None:
        """End all environments, including those in the pool."""
        self._end_environments(list(self._all), "stopped", lambda: self._pool.end(done))

    def acknowledge(self, fences: Iterable[Fence]) -> None:
        """Delete reports that are durable elsewhere."""
        for fence in fences:
            if self._reports.pop(fence, None) is not None:
                self._acknowledged[fence] = None
        while len(self._acknowledged) > _MAX_ACKNOWLEDGED_FENCES:
            del self._acknowledged[next(iter(self._acknowledged))]

    def _begin(self, spec: ExecSpec) -> None:
        if (spec.argv is not None and spec.source is not None) or spec.argv == ():
            self._report_refusal(spec, "setup_failed", "at most one of argv and source may be given")
            return
        environment = self._persistent.get(spec.environment.id)
        if environment is not None and (environment.attempt is not None or environment.is_ending):
            self._report_refusal(
                spec,
                "environment_busy",
                "another action runs in the environment, or the environment is being destroyed",
            )
            return
        if self.workers.is_active_in(spec.environment.id):
            # The worker belongs to a former manager. It was killed and ends within moments.
            self._host.loop.call_later(_WORKER_POLL_S, lambda: self.start([spec]))
            return
        if environment is None and not spec.environment.may_make:
            self._record_report(_lost_report(spec))
            return
        if environment is not None and spec.environment.template not in (None, environment.spec.template):
            message = f"the environment was created from template {environment.spec.template!r}"
            self._report_refusal(spec, "setup_failed", f"{message}, not from {spec.environment.template!r}")
            return
        try:
            environment = environment or self._create_environment(spec)
        except (OSError, TemplateUnavailable) as error:
            self._report_refusal(spec, "setup_failed", str(error))
            return
        try:
            if spec.sharing is not None and self._shared_cores is not None:
                spec = replace(spec, cores=self._shared_cores)
            attempt = SandboxAttempt(spec, self.shared_attempts)
        except OSError as error:
            self._report_refusal(spec, "setup_failed", f"no pipe could be created for the output: {error}")
            if spec.environment.scope == "ephemeral":
                environment.end()
            return
        self._running[spec.fence] = environment
        environment.begin(attempt)

    def _attempt(self, fence: Fence) -> SandboxAttempt | None:
        environment = self._running.get(fence)
        return environment.attempt if environment is not None else None

    def _resize(self, resize: AttemptResize) -> bool:
        environment = self._running.get(resize.fence)
        return environment is not None and environment.resize(resize)

    def _create_environment(self, first: ExecSpec) -> SandboxEnvironment:
        """Create an environment. Raises OSError or TemplateUnavailable."""
        name = first.environment.template or HOST_TEMPLATE
        spec = replace(first.environment, template=name)
        template = open_template(self._host.templates, self._host.driver, name)
        tell = (self._record_report, self._environment_removed)
        try:
            environment = SandboxEnvironment(spec, self._host, self._pool, *tell, template)
        except OSError:
            if template is not None:
                template.close()
            raise
        self._all.add(environment)
        if spec.scope == "trajectory":
            self._persistent[spec.id] = environment
        return environment

    def _report_refusal(self, spec: ExecSpec, reason: str, message: str) -> None:
        self._record_report(ExecutionReport(fence=spec.fence, outcome="infra_error", reason=reason, message=message))

    def _record_report(self, report: ExecutionReport) -> None:
        self._running.pop(report.fence, None)
        self._reports[report.fence] = report
        self.on_event(report)

    def _report_unused(self, cpu_milli: int) -> None:
        self.on_event(UnusedCoresEvent(cpu_milli))

    def _environment_removed(self, environment: SandboxEnvironment, lost_reason: str | None) -> None:
        self._all.discard(environment)
        if self._persistent.get(environment.spec.id) is environment:
            del self._persistent[environment.spec.id]
            if lost_reason is not None:
                self.on_event(EnvironmentLostEvent(id=environment.spec.id, lost_reason=lost_reason))
        waiting, self._end_waiters = self._end_waiters, []
        for environments, done in waiting:
            self._call_when_ended(environments - {environment}, done)

    def _end_environments(
        self, environments: Sequence[SandboxEnvironment], cause: StopCause, done: Callable[[], None]
    ) -> None:
        for environment in environments:
            environment.end(cause)
        self._call_when_ended(frozenset(environments) & self._all, done)

    def _call_when_ended(self, environments: frozenset[SandboxEnvironment], done: Callable[[], None]) -> None:
        if environments:
            self._end_waiters.append((environments, done))
        else:
            done()


def _running_attempt(attempt: SandboxAttempt, environment: UUID) -> RunningAttempt:
    given = attempt.allocation
    return RunningAttempt(
        given.fence,
        environment,
        given.cores,
        cpu_milli=given.cpu_milli,
        amounts_seq=given.amounts_seq,
        sharing=attempt.spec.sharing,
    )


def _lost_report(spec: ExecSpec) -> ExecutionReport:
    return ExecutionReport(
        fence=spec.fence,
        outcome="infra_error",
        reason="environment_lost",
        message="the environment no longer exists, and an empty one must not replace it",
        environment_lost=True,
    )
