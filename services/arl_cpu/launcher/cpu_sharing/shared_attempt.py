"""A running attempt that shares cores: its counted time and its use of cores, from samples."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from arl_core.control.counted_time import CountedTime, CpuSample
from arl_core.control.cpu_weights import CpuShareState
from arl_core.domain.model import CpuSharing
from arl_cpu.contract.executor import ExecSpec
from arl_cpu.launcher.cpu_sharing.environment_cpu import EnvironmentCpu

__all__ = ["SharedAttempt"]

RESTING_AFTER_S, RESTING_INTERVAL_S = 5.0, 0.5
"""Time without a runnable task after which samples are rarer, and the time between them."""
MIN_INTERVAL_S = 0.02
"""Shortest time between samples near the time limit."""
USE_WINDOW_S = 1.0
"""Time over which the use of cores is measured."""
BUSY_FRACTION = 0.98
"""Use of a core from which the attempt is busy and the states of its tasks need not be read."""


class SharedAttempt:
    """The state of one attempt. `number` orders attempts by their start."""

    def __init__(self, spec: ExecSpec, sharing: CpuSharing, cpu: EnvironmentCpu, *, now: float) -> None:
        """Begin at `now`, a monotonic time."""
        self._spec, self._sharing, self._cpu = spec, sharing, cpu
        self.is_critical = spec.is_critical
        """True if its trajectory is critical now."""
        self._clock = CountedTime(started_s=now, guarantee_milli=sharing.guarantee_milli)
        self._cpu_s = 0.0
        self._sampled_at = self._last_runnable_at = now
        self._is_runnable = False
        """State at the last sample. Before it, the attempt counts like a sleeping one: in full."""
        self._history: deque[tuple[float, float, float]] = deque([(now, 0.0, 0.0)])
        """Time, processor seconds and idle seconds of the samples of the last moments."""
        self._limit_s: float | None = None
        """Counted seconds at which the attempt has reached its time limit."""
        self._on_timeout: Callable[[], None] = _do_nothing
        self._weight: int | None = None
        self._is_ending = False

    def limit(self, limit_s: float, on_timeout: Callable[[], None], *, now: float) -> None:
        """Call `on_timeout` once the attempt has `limit_s` counted seconds from now on. A second call does nothing."""
        if self._limit_s is None:
            self._take_sample(now)
            self._is_runnable = False  # the program is only starting
            self._limit_s, self._on_timeout = self._clock.counted_s + limit_s, on_timeout

    def sample(self, now: float) -> None:
        """Count the time since the last sample. End the attempt if it has reached its limit."""
        self._take_sample(now)
        if self._limit_s is not None and self._clock.counted_s >= self._limit_s:
            on_timeout, self._on_timeout = self._on_timeout, _do_nothing
            on_timeout()

    def due_at(self) -> float:
        """Return the time of the next sample."""
        is_resting = self._sampled_at - self._last_runnable_at >= RESTING_AFTER_S
        interval_s = RESTING_INTERVAL_S if is_resting else self._cpu.sample_interval_s
        # Samples of all attempts fall together, so that the launcher wakes up once for all of them.
        due_at = (self._sampled_at // interval_s + 1) * interval_s
        if self._limit_s is not None and self._on_timeout is not _do_nothing:
            due_at = min(due_at, self._sampled_at + self._clock.rest_s(self._limit_s))
        return max(due_at, self._sampled_at + MIN_INTERVAL_S)

    def end(self, cpu_us: int, *, now: float) -> int:
        """Return the counted time in microseconds of an attempt that ended with this processor time."""
        self._clock.add(CpuSample(now, cpu_us / 1e6, self._is_runnable))
        return int(self._clock.counted_s * 1e6)

    @property
    def counts_one_core(self) -> bool:
        """Return True if the counted time cannot exceed the run time."""
        return self._sharing.guarantee_milli <= 1000

    @property
    def state(self) -> CpuShareState | None:
        """Return its part of the weights; None if it is being ended."""
        if self._is_ending:
            return None
        return CpuShareState(
            guarantee_milli=self._sharing.guarantee_milli,
            expected_cpu_s=self._spec.expected_cpu_s,
            used_cpu_s=self._cpu_s,
            is_critical=self.is_critical,
            is_declared=self._sharing.is_declared,
        )

    def set_weight(self, weight: int, *, largest: int, min_change: float = 0.0) -> None:
        """Set the weight, unless it differs from the current one by at most this fraction."""
        if self._weight is not None and abs(weight - self._weight) <= min_change * self._weight:
            return
        with suppress(OSError):  # the environment has ended, or the host does not allow it
            self._cpu.set_weight(weight, largest=largest)
            self._weight = weight

    def speed_up_end(self, weight: int) -> None:
        """Set this weight until the attempt ends: the process that kills the others needs a core soon."""
        self._is_ending = True
        self.set_weight(weight, largest=weight)

    def unused_milli(self) -> int:
        """Return the allocated milli-cores that it did not want in the last second; 0 before a second has passed.

        Waiting for a core counts as use: an attempt that others keep from running needs its allocation.
        """
        (began_at, cpu_s, idle_s), (at, last_cpu_s, last_idle_s) = self._history[0], self._history[-1]
        elapsed_s = at - began_at
        if self._sharing.is_declared or elapsed_s < USE_WINDOW_S:
            return 0
        wanted_s = max(last_cpu_s - cpu_s, elapsed_s - (last_idle_s - idle_s))
        floor = max(self._sharing.guarantee_milli, round(1000 * wanted_s / elapsed_s))
        return max(0, self._spec.cpu_milli - floor)

    def _take_sample(self, now: float) -> None:
        try:
            cpu_s = (self._cpu.cpu_us() - self._cpu.first_cpu_us) / 1e6
            is_busy = cpu_s - self._cpu_s >= BUSY_FRACTION * (now - self._sampled_at)
            self._is_runnable = is_busy or self._cpu.is_runnable()
        except OSError:  # the environment has ended, which is reported soon
            cpu_s = self._cpu_s
        self._clock.add(CpuSample(now, cpu_s, self._is_runnable))
        self._cpu_s, self._sampled_at = cpu_s, now
        if self._is_runnable:
            self._last_runnable_at = now
        self._history.append((now, cpu_s, self._clock.idle_s))
        while len(self._history) > 2 and now - self._history[1][0] >= USE_WINDOW_S:
            self._history.popleft()


def _do_nothing() -> None:
    """Do nothing: there is no limit, or it was reached."""
