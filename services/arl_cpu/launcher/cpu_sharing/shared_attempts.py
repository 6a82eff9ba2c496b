"""All running attempts of the launcher that share cores: when they are sampled, and what each gets of the cores.

Nothing runs while no attempt shares cores.
"""

import os
import time
from collections.abc import Callable, Sequence

from arl_core.control.cpu_weights import CpuWeightRange, cpu_weights
from arl_core.domain.model import CpuSharing
from arl_cpu.contract.executor import ExecSpec
from arl_cpu.launcher.cpu_sharing.environment_cpu import EnvironmentCpu
from arl_cpu.launcher.cpu_sharing.shared_attempt import SharedAttempt
from arl_cpu.launcher.linux.event_loop import EventLoop, LoopTimer

__all__ = ["SharedAttempts"]

WEIGHTS_INTERVAL_S = 0.25
"""Time between two renewals of the weights."""
MIN_WEIGHT_CHANGE = 0.02
"""Relative change below which a weight is not written."""
REPORT_INTERVAL_S, REPORT_CHANGE_MILLI = 0.5, 100
"""Least time between two reports of unused cores, and the least change that is reported."""
TOGETHER_S = 0.005
"""Samples that are due within this time are taken together."""


class SharedAttempts:
    """The sampler and the weights. It calls `on_unused` with the milli-cores that are allocated and not used."""

    def __init__(self, loop: EventLoop, weights: CpuWeightRange, on_unused: Callable[[int], None]) -> None:
        self._loop, self._weights, self._on_unused = loop, weights, on_unused
        self._cores = len(os.sched_getaffinity(0))
        self._running: list[SharedAttempt] = []
        self._timer: LoopTimer | None = None
        self._weighted_at = self._reported_at = 0.0
        self._reported_milli = 0

    def set_cores(self, cores: Sequence[int]) -> None:
        """Set the cores that all attempts share."""
        self._cores = len(cores)
        self.renew_weights()

    def begin(self, spec: ExecSpec, sharing: CpuSharing, cpu: EnvironmentCpu) -> SharedAttempt:
        """Begin an attempt."""
        attempt = SharedAttempt(spec, sharing, cpu, now=time.monotonic())
        self._running.append(attempt)
        self.renew_weights()
        self._schedule()
        return attempt

    def limit(self, attempt: SharedAttempt, limit_s: float, on_timeout: Callable[[], None]) -> None:
        """Limit the counted time of the attempt from now on."""
        attempt.limit(limit_s, on_timeout, now=time.monotonic())
        self._schedule()

    def end(self, attempt: SharedAttempt, cpu_us: int) -> int:
        """End an attempt and return its counted time in microseconds."""
        self._running.remove(attempt)
        self.renew_weights()
        self._report_unused()
        self._schedule()
        return attempt.end(cpu_us, now=time.monotonic())

    def speed_up_end(self, attempt: SharedAttempt) -> None:
        """Give an attempt that is being killed the largest weight."""
        attempt.speed_up_end(self._weights.most)

    def report_again(self) -> None:
        """Report the unused cores to a new manager, which knows none."""
        self._reported_milli = 0

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running:
            due_at = min(attempt.due_at() for attempt in self._running)
            self._timer = self._loop.call_later(max(0.0, due_at - time.monotonic()), self._sample)

    def _sample(self) -> None:
        now = time.monotonic()
        for attempt in tuple(self._running):
            if attempt.due_at() <= now + TOGETHER_S:
                attempt.sample(now)
        if len(self._running) > 1 and now - self._weighted_at >= WEIGHTS_INTERVAL_S:
            self.renew_weights()
        self._report_unused()
        self._schedule()

    def renew_weights(self) -> None:
        """Renew the weights of all attempts."""
        self._weighted_at = time.monotonic()
        states = {attempt: state for attempt in self._running if (state := attempt.state) is not None}
        weights = cpu_weights(states, cores=self._cores, weights=self._weights)
        for attempt, weight in weights.items():
            attempt.set_weight(weight, largest=max(weights.values()), min_change=MIN_WEIGHT_CHANGE)

    def _report_unused(self) -> None:
        now = time.monotonic()
        milli = sum(attempt.unused_milli() for attempt in self._running)
        is_due = now - self._reported_at >= REPORT_INTERVAL_S or not self._running
        is_news = abs(milli - self._reported_milli) >= REPORT_CHANGE_MILLI or (milli == 0 and self._reported_milli > 0)
        if is_due and is_news:
            self._reported_at, self._reported_milli = now, milli
            self._on_unused(milli)
