"""One attempt as the launcher sees it: its output, how it was stopped, and what that makes of it."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from arl_cpu.executor import ExecSpec, Portion, Report, Resize, Stream

from .cgroups import Usage
from .channel import as_file
from .feeding import Feed
from .following import Followers
from .loop import Loop, Timer

__all__ = ["Attempt", "Capture", "Cause", "Ended", "outcome_of"]

Cause = Literal["cancelled", "timeout", "output", "setup", "stopped"]
Outcome = Literal["ok", "user_error", "user_timeout", "limit_exceeded", "infra_error", "cancelled"]
_READ_BYTES = 256 << 10
_BY_CAUSE: Mapping[Cause, tuple[Outcome, str | None]] = {
    "cancelled": ("cancelled", None),
    "timeout": ("user_timeout", None),
    "output": ("limit_exceeded", "output"),
    "setup": ("infra_error", "setup_failed"),
    "stopped": ("infra_error", "node_stopped"),
}


class Capture:
    """A pipe's read end: the first bytes kept, the rest counted."""

    def __init__(self, keep_bytes: int) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._keep_bytes = keep_bytes
        self._kept = bytearray()
        self.total_bytes = 0
        self.is_open = True

    def read(self) -> int | None:
        """Take what is there, at most one portion: how many bytes, None when nothing is there now, 0 at the end."""
        try:
            data = os.read(self.read_end, _READ_BYTES) if self.is_open else b""
        except BlockingIOError:
            return None
        self.take(data)
        return len(data)

    def take(self, data: bytes) -> None:
        self._kept += data[: self._keep_bytes - len(self._kept)]
        self.total_bytes += len(data)

    def stream(self) -> Stream:
        return Stream(bytes(self._kept), self.total_bytes)

    def portion(self, offset: int) -> Portion:
        return Portion.of(self._kept, self.total_bytes, offset)

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        self.close_write_end()
        if self.is_open:
            os.close(self.read_end)
            self.is_open = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is known when an attempt is over."""

    cause: Cause | None = None
    """Why the launcher stopped it, if it did."""
    exit_status: int | None = None
    """As `os.waitstatus_to_exitcode` says; None when nobody saw it end."""
    refused: bool = False
    oom_kills: int = 0
    over_memory: bool = False
    pids_refused: int = 0
    limit_if_failed: str | None = None
    limit: str | None = None


def outcome_of(ended: Ended) -> tuple[Outcome, str | None]:
    """The outcome and its reason. A limit that was met counts only where the attempt failed."""
    seen_to_end = ended.exit_status is not None and ended.exit_status != -signal.SIGKILL
    if ended.refused:
        return "user_error", None
    if ended.limit is not None:
        return "limit_exceeded", ended.limit
    if ended.cause is not None and not seen_to_end:
        return _BY_CAUSE[ended.cause]
    if ended.exit_status == 0:
        return "ok", None
    if ended.oom_kills or ended.over_memory:
        return "limit_exceeded", "memory"
    if ended.exit_status is None:
        return "infra_error", "environment_lost"
    if ended.pids_refused:
        return "limit_exceeded", "pids"
    if ended.limit_if_failed is not None:
        return "limit_exceeded", ended.limit_if_failed
    return "user_error", None


class Attempt:
    """Mutable record of a running attempt."""

    def __init__(self, spec: ExecSpec) -> None:
        self.spec = spec
        self.given = Resize(fence=spec.fence, cpu_milli=spec.cpu_milli, cores=spec.cores, amounts_seq=spec.amounts_seq)
        """What it has now; its first amounts are like a resize that nobody asked for."""
        self.cause: Cause | None = None
        self.stdout = Capture(spec.output_keep_bytes)
        self.stderr = Capture(spec.output_keep_bytes)
        self.followers = Followers(self.stdout.portion, self.stderr.portion)
        self.feed = _feed_of(spec)
        self.started_at: float | None = None
        self.others_bytes = 0
        """Written meanwhile by what earlier actions left behind: reading it costs as much."""
        self.usage_before = Usage()
        self.files: dict[str, bytes] = {}
        self.ended: dict[str, Any] | None = None
        self.timer: Timer | None = None
        self._deadline: float | None = None

    @property
    def captures(self) -> tuple[Capture, Capture]:
        return self.stdout, self.stderr

    def time_left_s(self) -> float:
        """Of its timeout, which goes from the first time that something of it was begun."""
        now = time.monotonic()
        self._deadline = self._deadline or now + self.spec.timeout_s
        return max(0.0, self._deadline - now)

    def set_timer(self, loop: Loop, delay_s: float, call: Callable[[], None]) -> None:
        """The one thing that happens next if nothing else does: set-up limit, timeout, or the next stage of a kill."""
        self.cancel_timer()
        self.timer = loop.after(delay_s, call)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def is_over_output(self) -> bool:
        written = self.stdout.total_bytes + self.stderr.total_bytes + self.others_bytes
        return written > self.spec.output_kill_bytes

    def stdin(self, loop: Loop, owner: int | None) -> int:
        """What it reads from, a file to be closed when it was handed over."""
        if self.feed is not None:
            return self.feed.open(loop, owner)
        return as_file(self.spec.stdin) if self.spec.stdin else os.open("/dev/null", os.O_RDONLY)

    def read(self, capture: Capture) -> int | None:
        """As the capture says; and whoever follows hears of it."""
        taken = capture.read()
        if taken:
            self.followers.tell()
        return taken

    def took(self, data: bytes) -> bool:
        """Somebody else has read it; whether that is too much."""
        self.stdout.take(data)
        self.followers.tell()
        return self.is_over_output()

    def finish(self) -> None:
        """Take everything written so far: the writers are dead or frozen, so this ends. Nobody reads input any more."""
        for capture in self.captures:
            while capture.read():
                pass
        self.followers.tell(ended=True)
        if self.feed is not None:
            self.feed.close()

    def report(self, usage: Usage, peak_kib: int, *, lost: bool, enforcement: Mapping[str, str]) -> Report:
        message = self.ended or {}
        status = message.get("status")
        exit_status = os.waitstatus_to_exitcode(status) if status is not None else None
        refused = message.get("refused")
        outcome, reason = outcome_of(
            Ended(
                cause=self.cause,
                exit_status=exit_status,
                refused=refused is not None,
                oom_kills=usage.oom_kills - self.usage_before.oom_kills,
                over_memory=message.get("over_memory", False),
                pids_refused=usage.pids_refused - self.usage_before.pids_refused,
                limit_if_failed=message.get("limit_if_failed"),
                limit=message.get("limit"),
            )
        )
        stderr = self.stderr.stream()
        if refused is not None:
            text = f"{refused}\n".encode(errors="backslashreplace")
            stderr = Stream(text, len(text))
        return Report(
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
            run_us=int((time.monotonic() - self.started_at) * 1_000_000) if self.started_at is not None else 0,
            cpu_us=usage.cpu_us - self.usage_before.cpu_us or message.get("cpu_us", 0),
            peak_memory_kib=peak_kib or message.get("peak_kib", 0),
            left_behind=message.get("left_behind", 0),
            environment_lost=lost,
            enforcement=enforcement,
        )


def _feed_of(spec: ExecSpec) -> Feed | None:
    """What is written to it while it runs: all that is typed on a terminal, elsewhere only what can be continued."""
    is_typed = spec.session is not None
    if not spec.stdin_open and not (is_typed and spec.stdin):
        return None
    return Feed(spec.stdin, is_typed=is_typed, is_all=not spec.stdin_open)
