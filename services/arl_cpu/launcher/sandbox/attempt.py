"""The launcher's record of an attempt: its output, the cause of a stop, and its outcome."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from arl_cpu.contract.executor import (
    AttemptResize,
    CapturedChunk,
    CapturedStream,
    ExecSpec,
    ExecutionReport,
    first_limit,
)
from arl_cpu.launcher.cpu_sharing.environment_cpu import EnvironmentCpu
from arl_cpu.launcher.cpu_sharing.shared_attempt import SharedAttempt
from arl_cpu.launcher.cpu_sharing.shared_attempts import SharedAttempts
from arl_cpu.launcher.linux.cgroups import CgroupUsage
from arl_cpu.launcher.linux.event_loop import EventLoop, LoopTimer
from arl_cpu.launcher.linux.packet_channel import create_sealed_file
from arl_cpu.launcher.sandbox.output_followers import OutputFollowers
from arl_cpu.launcher.sandbox.stdin_feed import StdinFeed
from arl_cpu.launcher.sandbox.terminal_input import CompleteTerminalInput

__all__ = ["AttemptEnd", "LeftoverOutputs", "OutputCapture", "SandboxAttempt", "StopCause", "outcome_of"]

StopCause = Literal["cancelled", "timeout", "wall_timeout", "output", "setup", "stopped"]
AttemptOutcome = Literal["ok", "user_error", "user_timeout", "limit_exceeded", "infra_error", "cancelled"]
_READ_BYTES = 256 << 10
_OUTCOME_BY_CAUSE: Mapping[StopCause, tuple[AttemptOutcome, str | None]] = {
    "cancelled": ("cancelled", None),
    "timeout": ("user_timeout", "timeout_s"),
    "wall_timeout": ("user_timeout", "wall_timeout_s"),
    "output": ("limit_exceeded", "output"),
    "setup": ("infra_error", "setup_failed"),
    "stopped": ("infra_error", "node_stopped"),
}
_MAX_LEFTOVER_OUTPUTS = 64
"""A process can keep each output open, and the launcher's open files are limited."""


class OutputCapture:
    """The read end of a pipe. The first bytes are retained and the rest is counted."""

    def __init__(self, keep_bytes: int) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._keep_bytes = keep_bytes
        self._retained = bytearray()
        self.total_bytes = 0
        self.is_open = True

    def read(self) -> int | None:
        """Read at most one portion. Return its size, None if nothing is available now, or 0 at the end."""
        try:
            data = os.read(self.read_end, _READ_BYTES) if self.is_open else b""
        except BlockingIOError:
            return None
        self.append(data)
        return len(data)

    def append(self, data: bytes) -> None:
        """Retain the data up to the limit and count the rest."""
        self._retained += data[: self._keep_bytes - len(self._retained)]
        self.total_bytes += len(data)

    def stream(self) -> CapturedStream:
        """Return the retained bytes and the total length."""
        return CapturedStream(bytes(self._retained), self.total_bytes)

    def chunk_from(self, offset: int) -> CapturedChunk:
        """Return the part of the stream from the offset on."""
        return CapturedChunk.from_buffer(self._retained, self.total_bytes, offset)

    def close_write_end(self) -> None:
        """Close the write end, which the program has inherited."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        """Close both ends; a second call is harmless."""
        self.close_write_end()
        if self.is_open:
            os.close(self.read_end)
            self.is_open = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The facts about an ended attempt."""

    cause: StopCause | None = None
    """Cause of the stop, if the launcher stopped it."""
    exit_status: int | None = None
    """Result of `os.waitstatus_to_exitcode`. None if no exit was observed."""
    refused: bool = False
    oom_kills: int = 0
    over_memory: bool = False
    pids_refused: int = 0
    limit_if_failed: str | None = None
    limit: str | None = None
    has_leftovers: bool = False
    """True if processes of earlier actions shared the environment."""


def outcome_of(end: AttemptEnd) -> tuple[AttemptOutcome, str | None]:
    """Return the outcome and its reason. An exceeded limit counts only if the attempt failed."""
    seen_to_end = end.exit_status is not None and end.exit_status != -signal.SIGKILL
    if end.refused:
        return "user_error", None
    if end.limit is not None:
        return "limit_exceeded", end.limit
    if end.cause == "setup" and end.has_leftovers and not seen_to_end:
        return "user_error", "blocked_by_leftovers"
    if end.cause is not None and not seen_to_end:
        return _OUTCOME_BY_CAUSE[end.cause]
    if end.exit_status == 0:
        return "ok", None
    if end.oom_kills or end.over_memory:
        return "limit_exceeded", "memory"
    if end.exit_status is None:
        return "infra_error", "environment_lost"
    if end.pids_refused:
        return "limit_exceeded", "pids"
    if end.limit_if_failed is not None:
        return "limit_exceeded", end.limit_if_failed
    return "user_error", None


class SandboxAttempt:
    """A mutable record of a running attempt."""

    def __init__(self, spec: ExecSpec, shared_attempts: SharedAttempts | None = None) -> None:
        """Create the record. Raises OSError if there is no descriptor for its output.

        `shared_attempts` are those of the launcher; without them the attempt's time is real time.
        """
        self.spec = spec
        self._shared_attempts = shared_attempts
        self._shared: SharedAttempt | None = None
        self.allocation = AttemptResize(
            fence=spec.fence, cpu_milli=spec.cpu_milli, cores=spec.cores, amounts_seq=spec.resize_seq
        )
        """Current allocation. The initial one has the form of a resize."""
        self.cause: StopCause | None = None
        self.stdout = OutputCapture(spec.output_keep_bytes)
        self.stderr = OutputCapture(spec.output_keep_bytes)
        self.followers = OutputFollowers(self.stdout.chunk_from, self.stderr.chunk_from)
        self.stdin_feed = _stdin_feed_of(spec)
        self.started_at: float | None = None
        self.has_leftovers = False
        """True if processes of earlier actions share the environment."""
        self.leftover_bytes = 0
        """Bytes written meanwhile by processes of earlier actions; reading them has the same cost."""
        self.usage_before = CgroupUsage()
        self.files: dict[str, bytes] = {}
        self.exit_message: dict[str, Any] | None = None
        self.timer: LoopTimer | None = None
        self._deadline: float | None = None

    @property
    def captures(self) -> tuple[OutputCapture, OutputCapture]:
        """Return the captures of stdout and stderr."""
        return self.stdout, self.stderr

    def begin_sharing(self, cpu: EnvironmentCpu) -> None:
        """Begin to count the time of an attempt that shares cores."""
        if self._shared_attempts is not None and self.spec.sharing is not None:
            self._shared = self._shared_attempts.begin(self.spec, self.spec.sharing, cpu)

    def set_critical(self, is_critical: bool) -> None:
        """Set whether its trajectory is critical, also before it begins to share cores."""
        self.spec = replace(self.spec, is_critical=is_critical)
        if self._shared is not None:
            self._shared.is_critical = is_critical

    def start_limits(self, loop: EventLoop, stop: Callable[[StopCause], None]) -> None:
        """Call `stop` once the attempt exceeds a time limit. The limits start with its first step."""
        now, spec = time.monotonic(), self.spec
        self.cancel_timer()
        limit_s: float | None
        limit_s, reason = first_limit(spec)
        if self._shared_attempts is not None and self._shared is not None:
            self._shared_attempts.limit(self._shared, spec.timeout_s, lambda: stop("timeout"))
            limit_s, reason = spec.wall_timeout_s, "wall_timeout_s"
        if limit_s is not None:
            self._deadline = self._deadline or now + limit_s
            cause: StopCause = "timeout" if reason == "timeout_s" else "wall_timeout"
            self.set_timer(loop, max(0.0, self._deadline - now), lambda: stop(cause))

    def speed_up_end(self) -> None:
        """Give the environment of a killed attempt cores soon, because its agent has to kill the processes."""
        if self._shared_attempts is not None and self._shared is not None:
            self._shared_attempts.speed_up_end(self._shared)

    def set_timer(self, loop: EventLoop, delay_s: float, call: Callable[[], None]) -> None:
        """Set the attempt's only timer: set-up limit, timeout, or the next stage of a kill."""
        self.cancel_timer()
        self.timer = loop.call_later(delay_s, call)

    def cancel_timer(self) -> None:
        """Cancel the timer, if it is set."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def is_over_output(self) -> bool:
        """Return True if the output exceeds the attempt's limit."""
        written = self.stdout.total_bytes + self.stderr.total_bytes + self.leftover_bytes
        return written > self.spec.output_kill_bytes

    def open_stdin(self, loop: EventLoop, owner_uid: int | None) -> int:
        """Return the input file. The caller closes it after passing it on."""
        if self.stdin_feed is not None:
            return self.stdin_feed.open_pipe(loop, owner_uid)
        return create_sealed_file(self.spec.stdin) if self.spec.stdin else os.open("/dev/null", os.O_RDONLY)

    def read(self, capture: OutputCapture) -> int | None:
        """Read the capture as `OutputCapture.read` does, and notify followers."""
        taken = capture.read()
        if taken:
            self.followers.notify()
        return taken

    def append_output(self, data: bytes) -> bool:
        """Append output that another reader has read. Return True if it exceeds the limit."""
        self.stdout.append(data)
        self.followers.notify()
        return self.is_over_output()

    def attribute_missing(self, text: str, message: dict[str, Any], *, template_has_it: bool) -> None:
        """Attribute a missing interpreter: a template without it is not the program's fault.

        A program that removes the interpreter must not gain.
        """
        if template_has_it:
            message["refused"] = text
            return
        self.cause = self.cause or "setup"
        message["message"] = text
        message.pop("status", None)

    def finish(self) -> None:
        """Read all output so far and close the input. The writers are dead or frozen, so the output ends."""
        for capture in self.captures:
            while capture.read():
                pass
        self.followers.notify(ended=True)
        if self.stdin_feed is not None:
            self.stdin_feed.close()

    def report(
        self, usage: CgroupUsage, peak_kib: int, *, lost: bool, enforcement: Mapping[str, str]
    ) -> ExecutionReport:
        """Return the report of the ended attempt."""
        message = self.exit_message or {}
        status = message.get("status")
        exit_status = os.waitstatus_to_exitcode(status) if status is not None else None
        refused = message.get("refused")
        outcome, reason = outcome_of(
            AttemptEnd(
                cause=self.cause,
                exit_status=exit_status,
                refused=refused is not None,
                oom_kills=usage.oom_kills - self.usage_before.oom_kills,
                over_memory=message.get("over_memory", False),
                pids_refused=usage.pids_refused - self.usage_before.pids_refused,
                limit_if_failed=message.get("limit_if_failed"),
                limit=message.get("limit"),
                has_leftovers=self.has_leftovers and self.exit_message is None,
            )
        )
        stderr = self.stderr.stream()
        if refused is not None:
            text = f"{refused}\n".encode(errors="backslashreplace")
            stderr = CapturedStream(text, len(text))
        run_us = int((time.monotonic() - self.started_at) * 1_000_000) if self.started_at is not None else 0
        cpu_us = usage.cpu_us - self.usage_before.cpu_us or message.get("cpu_us", 0)
        return ExecutionReport(
            fence=self.spec.fence,
            outcome=outcome,
            reason=reason,
            message=refused or message.get("message"),
            exit_code=exit_status if exit_status is not None and exit_status >= 0 else None,
            signal=-exit_status if exit_status is not None and exit_status < 0 else None,
            stdout=self.stdout.stream(),
            stderr=stderr,
            files=self.files,
            missing_files=tuple(path for path in self.spec.fetch if path not in self.files),
            run_us=run_us,
            counted_us=self._end_counting(cpu_us, run_us),
            cpu_us=cpu_us,
            peak_memory_kib=peak_kib or message.get("peak_kib", 0),
            leftover_processes=message.get("leftover_processes", 0),
            environment_lost=lost,
            enforcement=enforcement,
        )

    def _end_counting(self, cpu_us: int, run_us: int) -> int:
        """Return the microseconds that count for the time limit."""
        if self._shared_attempts is None or self._shared is None:
            return run_us
        shared, self._shared = self._shared, None
        counted_us = self._shared_attempts.end(shared, cpu_us)
        return min(counted_us, run_us) if shared.counts_one_core else counted_us


def _stdin_feed_of(spec: ExecSpec) -> StdinFeed | None:
    """Return the feed for input during the run: all input of a terminal, otherwise only input that may continue."""
    is_typed = spec.session is not None
    if spec.stdin_open:
        return StdinFeed(spec.stdin, is_terminal=is_typed)
    return CompleteTerminalInput(spec.stdin) if is_typed and spec.stdin else None


class LeftoverOutputs:
    """A reader of output of processes that earlier actions left. If the pipes were closed, SIGPIPE would end them."""

    def __init__(self, loop: EventLoop, on_read: Callable[[int], None]) -> None:
        self._loop, self._on_read = loop, on_read
        self._captures: list[OutputCapture] = []

    def keep(self, capture: OutputCapture) -> None:
        """Continue to read an output until its end. With too many outputs, the oldest is closed."""
        self._captures.append(capture)
        if len(self._captures) > _MAX_LEFTOVER_OUTPUTS:
            self._close(self._captures[0])

        def discard() -> None:
            """Read and discard one portion."""
            taken = capture.read()
            if taken == 0:
                self._close(capture)
            elif taken:
                self._on_read(taken)

        self._loop.watch(capture.read_end, discard)

    def close(self) -> None:
        """Close all outputs."""
        for capture in list(self._captures):
            self._close(capture)

    def _close(self, capture: OutputCapture) -> None:
        self._loop.unwatch(capture.read_end)
        capture.close()
        self._captures.remove(capture)
