"""An environment: its agent, which is its pid 1, its cgroup and its current attempt."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from arl_cpu.contract.executor import AttemptResize, EnvironmentSpec, ExecutionReport
from arl_cpu.launcher.agent.agent_request import AgentRequest
from arl_cpu.launcher.agent.native import PYTHON
from arl_cpu.launcher.files import workdir
from arl_cpu.launcher.isolation.isolation import AgentSetup
from arl_cpu.launcher.isolation.mounts import WORKSPACE
from arl_cpu.launcher.linux.id_ranges import give_file
from arl_cpu.launcher.linux.packet_channel import read_file
from arl_cpu.launcher.linux.processes import ProcessInfo
from arl_cpu.launcher.network.environment_network import EnvironmentNetwork
from arl_cpu.launcher.sandbox.attempt import LeftoverOutputs, OutputCapture, SandboxAttempt, StopCause
from arl_cpu.launcher.sandbox.cpu_limits import SandboxCpu
from arl_cpu.launcher.sandbox.environment_template import (
    choose_user,
    has_program,
    program_variables,
    template_home,
)
from arl_cpu.launcher.sandbox.request_builder import MISSING_PYTHON, build_request
from arl_cpu.launcher.sandbox.sandbox import Sandbox, SandboxPool
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost, SandboxOwner
from arl_cpu.launcher.sandbox.shell_manager import ShellManager
from arl_cpu.templates.template_store import OpenTemplate

__all__ = ["SandboxEnvironment"]

_SETUP_LIMIT_S = 30.0
_INTERRUPT_STAGE_S, _KILL_STAGE_S = 0.2, 3.0
_FREEZE_LIMIT_S, _FREEZE_POLL_S = 2.0, 0.0001
_AGENT_PROCESSES = 1
"""Processes in addition to those of actions."""


class SandboxEnvironment:
    """An environment, ready some time after its creation. It ends when its pid 1 is reaped."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        host: SandboxHost,
        pool: SandboxPool,
        on_report: Callable[[ExecutionReport], None],
        on_removed: Callable[["SandboxEnvironment", str | None], None],
        template: OpenTemplate | None = None,
    ) -> None:
        self.spec, self._host, self._pool, self._template = spec, host, pool, template
        self._cpu = SandboxCpu(host)
        self._on_report, self._on_removed = on_report, on_removed
        self.attempt: SandboxAttempt | None = None
        self.is_ending = self._is_ready = self._has_leftovers = False
        self._loss_reason: str | None = None
        self._variables: dict[str, str] = {}
        """Variables of every action in the environment."""
        self._leftover_outputs = LeftoverOutputs(host.loop, self._leftover_output_read)
        self._shell_manager = ShellManager(host.loop, self._send_order, self._send_finish, self._append_terminal_output)
        self.network = EnvironmentNetwork(host, str(spec.id), spec.network)
        self._acquire_sandbox(pool.acquire if template is None else partial(pool.create, template=template))

    @property
    def ready_sandbox(self) -> Sandbox | None:
        """The sandbox, or None if it is not ready or is ending."""
        return self._sandbox if self._is_ready and not self.is_ending else None

    @property
    def idle_sandbox(self) -> tuple[Sandbox, str] | None:
        """The sandbox and its working directory, or None if it is not ready, runs an attempt or is ending."""
        return (self._sandbox, self._workspace()) if self.ready_sandbox and not self.attempt else None

    def begin(self, attempt: SandboxAttempt) -> None:
        """Run an attempt once the environment is ready. No other attempt may be running."""
        self.attempt = attempt
        attempt.has_leftovers = self._has_leftovers
        if self._sandbox.pid is not None:
            self._limit_setup(attempt)
        if self._is_ready:
            self._prepare_network(attempt)

    def stop(self, cause: StopCause) -> None:
        """Stop the running attempt in stages: by the agent, then by killing pid 1 and the whole environment."""
        attempt = self.attempt
        if attempt is None or attempt.cause is not None or attempt.exit_message is not None:
            return
        attempt.cause = cause
        if not self._is_ready:
            self.end()
        elif self._shell_manager.interrupt():
            attempt.set_timer(self._host.loop, _INTERRUPT_STAGE_S, partial(self._kill, attempt))
        else:
            self._kill(attempt)

    def _kill(self, attempt: SandboxAttempt) -> None:
        attempt.speed_up_end()
        self._cpu.raise_quota(self._sandbox, attempt)
        self._send({"op": "kill"})
        attempt.set_timer(self._host.loop, _KILL_STAGE_S, self._sandbox.kill)
        self._shell_manager.attempt_killed()

    def resize(self, resize: AttemptResize) -> bool:
        """Return True if the attempt has this allocation or a later one. A waiting attempt starts with it.

        An attempt that ended, is being ended or could not be changed keeps its allocation.
        """
        attempt = self.attempt
        if attempt is None or attempt.exit_message is not None or attempt.cause is not None:
            return False
        before = attempt.allocation
        if resize.amounts_seq <= before.amounts_seq:
            return True
        return self._cpu.change(self._sandbox, attempt, resize)

    def set_shared_cores(self, cores: Sequence[int]) -> None:
        """Change the cores of an attempt that shares them. One that is being ended keeps its cores."""
        attempt = self.attempt
        if attempt is not None and attempt.spec.sharing is not None and attempt.cause is None:
            self._cpu.change(self._sandbox, attempt, replace(attempt.allocation, cores=tuple(cores)))

    def end(self, cause: StopCause = "cancelled") -> None:
        """End everything in the environment, the running attempt with this cause. `on_removed` is called at the end."""
        if self.is_ending:
            return
        self.is_ending = True
        if self.attempt is not None and self.attempt.exit_message is None:
            self.attempt.cause = self.attempt.cause or cause
        if self._sandbox.pid is None:
            return
        if self._host.driver.dies_with_init or self._host.cgroup_tree is not None:
            self._sandbox.kill()
        else:
            # The agent knows its descendants best: it ends them when its channel is closed.
            self._sandbox.channel.socket.shutdown(socket.SHUT_WR)
            self._host.loop.call_later(_KILL_STAGE_S, self._sandbox.kill)

    def died(self) -> None:
        """Handle the end of pid 1."""
        if self._was_pooled and not self._is_ready and not self.is_ending:
            # It died in the pool before this was known; nothing of the attempt has run.
            dead = self._sandbox
            try:
                self._acquire_sandbox(self._pool.create)
            except OSError as failure:
                self._loss_reason = f"the environment could not be created: {failure}"
            else:
                dead.remove(lambda: None)
                return
        if self.attempt is not None:
            self._settle(self.attempt, lost=self.spec.scope == "trajectory")
        elif not self.is_ending:
            self._loss_reason = "the first process of the environment ended"
        self.is_ending = True
        self._sandbox.remove(self._sandbox_removed)

    def _acquire_sandbox(self, acquire: Callable[[SandboxOwner], Sandbox]) -> None:
        self._sandbox = acquire(self)
        self._was_pooled = self._sandbox.is_prepared
        if self._was_pooled:
            self.prepared()

    def processes(self) -> list[ProcessInfo]:
        """Return every living process of it on the host, including its first one."""
        return self._sandbox.processes()

    def created(self) -> None:
        """Start the set-up limit: the agent exists."""
        if self.attempt is not None:
            self._limit_setup(self.attempt)
        if self.is_ending:
            self._sandbox.kill()

    def prepared(self) -> None:
        """Send the sizes to the prepared sandbox, which completes its isolation."""
        try:
            self._sandbox.cgroup.set_limits(
                memory_mib=self.spec.memory_mib,
                pids=self.spec.pids + _AGENT_PROCESSES,
            )
            self._sandbox.channel.send({"op": "bind", **asdict(self._setup())})
        except ConnectionError:
            self._sandbox.kill()  # the agent has ended; its death is handled like any other
        except OSError as failure:
            self.failed(f"the environment could not be set up: {failure}")

    def _limit_setup(self, attempt: SandboxAttempt) -> None:
        """Limit the set-up time from now on. Time spent waiting for other environments does not count."""
        attempt.set_timer(self._host.loop, _SETUP_LIMIT_S, lambda: self.stop("setup"))

    def _setup(self) -> AgentSetup:
        if not self._host.driver.dies_with_init:
            workdir.create(self._sandbox.work_dir, self._sandbox.own_uid)
        return AgentSetup(
            workspace=self._workspace(),
            home=template_home(self._template, self._workspace()),
            user=self.user_of(None),
            base_prefix=self._host.base_prefix,
            memory_mib=self.spec.memory_mib,
            disk_mib=self.spec.disk_mib,
            pids=self.spec.pids,
            keeps_processes=self.spec.scope == "trajectory",
            has_cgroup=self._host.cgroup_tree is not None,
            watches_memory=self._host.driver.is_isolated and self._host.cgroup_tree is None,
            host_id=self._sandbox.own_uid,
            watches_files=self._host.driver.name == "landlock",
            is_native=self._host.agent_kind != PYTHON,
        )

    def message_received(self, message: dict[str, Any], files: list[int]) -> None:
        """Handle a message of the agent about itself or the attempt."""
        match message["op"]:
            case "ready":
                self._is_ready = True
                if self.attempt is not None:
                    self._prepare_network(self.attempt)
            case "started" if self.attempt is not None:
                self._started(self.attempt)
            case "file" if self.attempt is not None:
                path = self.attempt.spec.fetch[message["number"]]
                self.attempt.files[path] = read_file(files[0], message["size"])
            case "exited" if self.attempt is not None:
                self._exited(self.attempt, message)

    def _prepare_network(self, attempt: SandboxAttempt) -> None:
        """Start the attempt once its network is open, unless it was stopped meanwhile."""

        def opened(problem: str | None) -> None:
            if self.attempt is not attempt:
                return
            if problem is not None:
                self.failed(problem)
            elif attempt.cause is not None:
                self._exited(attempt, {})
            else:
                self._start(attempt)

        self.network.begin(attempt.spec, self._sandbox, opened)

    def _start(self, attempt: SandboxAttempt) -> None:
        try:
            self._cpu.apply(self._sandbox, attempt, attempt.allocation, is_for_all=self._has_leftovers)
            self._sandbox.cgroup.thaw()
            attempt.usage_before = self._sandbox.usage or self._sandbox.cgroup.usage()
            self._sandbox.cgroup.reset_peak()
            self._cpu.begin_sharing(self._sandbox, attempt)
            self._send_start(attempt)
        except ConnectionError:
            self._sandbox.kill()  # the agent has ended; its death is handled like any other
        except OSError as failure:
            self.failed(f"the action could not be started: {failure}")
        except ValueError as mistake:
            self._exited(attempt, {"refused": str(mistake)})

    def _send_start(self, attempt: SandboxAttempt) -> None:
        spec = attempt.spec
        if spec.argv is None and spec.source is None and spec.env:
            self._variables = dict(spec.env)
        prefix, has_users = self._host.base_prefix, self._sandbox.has_users
        given = program_variables(self._template, prefix, self._workspace(), user=spec.user, has_users=has_users)
        given |= self.network.variables
        order = build_request(spec, self._workspace(), given, self._variables, self.user_of(spec.user))
        host_id = self._sandbox.host_id
        attempt.started_at = time.monotonic()
        if spec.session is not None:
            self._has_leftovers = True
            self._shell_manager.begin(attempt, order, host_id)
            return
        stdin = attempt.open_stdin(self._host.loop, host_id)
        try:
            for capture in attempt.captures:
                if host_id is not None:
                    give_file(capture.write_end, host_id)  # allows opening /dev/stdout inside
                self._host.loop.watch(capture.read_end, partial(self._read, attempt, capture))
            ends = [capture.write_end for capture in attempt.captures]
            self._send_order(order, [stdin, *ends])
        finally:
            os.close(stdin)
        for capture in attempt.captures:
            capture.close_write_end()

    def _send_order(self, order: AgentRequest, files: Sequence[int]) -> None:
        payload = order.pack()
        try:
            self._sandbox.channel.send({"op": "start"}, [payload, *files])
        finally:
            os.close(payload)

    def _send_finish(self, shell_has_ended: bool) -> None:
        self._send({"op": "finish", "shell": "ended"} if shell_has_ended else {"op": "finish"})

    def user_of(self, wanted: str | None) -> str | None:
        """Return the user of an action, or None if the environment has one user. Raises ValueError."""
        return choose_user(wanted, self._template, has_users=self._sandbox.has_users)

    def _workspace(self) -> str:
        if self._template is not None and self._template.template.workdir is not None:
            return self._template.template.workdir
        return WORKSPACE if self._host.driver.dies_with_init else workdir.workspace_path(self._sandbox.work_dir)

    def _started(self, attempt: SandboxAttempt) -> None:
        if attempt.cause is None:
            attempt.start_limits(self._host.loop, self.stop)
        self._shell_manager.started()

    def _append_terminal_output(self, data: bytes) -> None:
        """Append output of a session's terminal."""
        if self.attempt is not None and self.attempt.append_output(data):
            self.stop("output")

    def _read(self, attempt: SandboxAttempt, capture: OutputCapture) -> None:
        if attempt.read(capture) == 0:
            self._host.loop.unwatch(capture.read_end)
        elif attempt.is_over_output():
            self.stop("output")

    def _exited(self, attempt: SandboxAttempt, message: dict[str, Any]) -> None:
        if self._shell_manager.handle_exit(message):
            return
        missing = MISSING_PYTHON if message.pop("no_interpreter", False) else message.pop("missing", None)
        if missing is not None:
            name = "python3" if attempt.spec.source is not None else "bash"
            can_run = self._template is None or has_program(self._template, name)
            attempt.attribute_missing(missing, message, template_has_it=can_run)
        attempt.exit_message = message
        attempt.cancel_timer()
        if self.spec.scope == "ephemeral":
            self.end()
        else:
            self._settle_once_frozen(attempt, time.monotonic() + _FREEZE_LIMIT_S)

    def _settle_once_frozen(self, attempt: SandboxAttempt, deadline: float) -> None:
        """Settle once all is frozen. A process freezes when it next runs, so the event loop continues meanwhile."""
        if self.attempt is not attempt:
            return  # its environment died meanwhile, which was reported
        if self._sandbox.freeze():
            self._settle(attempt, lost=False)
        elif time.monotonic() > deadline:
            self._sandbox.kill()
        else:
            time.sleep(_FREEZE_POLL_S)  # the timers of the loop are ten times coarser
            self._host.loop.call_later(0, partial(self._settle_once_frozen, attempt, deadline))

    def _settle(self, attempt: SandboxAttempt, *, lost: bool) -> None:
        """Report the attempt. All its processes are dead or frozen."""
        self.attempt = None
        attempt.cancel_timer()
        attempt.finish()
        usage, peak_kib = attempt.usage_before, 0
        with suppress(OSError):  # without a free descriptor the usage is unknown, but the end is still reported
            self._sandbox.usage = usage = self._sandbox.cgroup.usage()
            peak_kib = self._sandbox.cgroup.peak_kib()
        self._has_leftovers |= bool(attempt.exit_message and attempt.exit_message.get("leftover_processes"))
        for capture in attempt.captures:
            if not capture.is_open:
                continue
            self._host.loop.unwatch(capture.read_end)
            if attempt.exit_message and attempt.exit_message.get("leftover_processes") and not lost:
                self._leftover_outputs.keep(capture)
            else:
                capture.close()
        report = attempt.report(usage, peak_kib, lost=lost, enforcement=self._host.enforcement)
        self.network.finish(report, self._on_report)

    def _leftover_output_read(self, size: int) -> None:
        """Count output of remaining processes against the running attempt."""
        if self.attempt is not None:
            self.attempt.leftover_bytes += size
            if self.attempt.is_over_output():
                self.stop("output")

    def failed(self, message: str) -> None:
        """Report a failed set-up and end the environment."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.cause, attempt.exit_message = attempt.cause or "setup", {"message": message}
            self._settle(attempt, lost=self._is_ready and self.spec.scope == "trajectory")
        self.end()
        if self._sandbox.pid is None:
            self._sandbox.remove(self._sandbox_removed)

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._sandbox.channel.send(message)
        except OSError:
            self._sandbox.kill()

    def _sandbox_removed(self) -> None:
        self._shell_manager.close()
        self._leftover_outputs.close()
        self.network.close()
        if self._template is not None:
            self._template.close()
        self._on_removed(self, self._loss_reason)
