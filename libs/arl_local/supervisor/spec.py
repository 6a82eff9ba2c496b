"""The specification of a supervised process, and the delay before a restart."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from arl_kit.child_process import UnixAccount

__all__ = ["ProcessSpec", "restart_delay_s"]

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process: its start command, its readiness check and its stop signal."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Complete environment variables; nothing is inherited."""
    ready: str | Callable[[], Awaitable[bool]]
    """An http URL that returns 200, or a check. It is polled often until it succeeds, then at `probe_interval_s`."""
    probe_interval_s: float = 5.0
    """Seconds between checks after the first success. A process that fails a check is unready and is not restarted."""
    account: UnixAccount | None = None
    before_start: Callable[[], Awaitable[None]] | None = None
    """Coroutine that is awaited before every start."""
    stop_order: int = 0
    """Position in the stop order, lowest first; equal numbers stop together."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 25.0
    fatal_exit_codes: frozenset[int] = frozenset()
    """Exit codes after which a restart does not help."""


def restart_delay_s(exits: int, *, jitter: float) -> float:
    """Return the seconds to wait after consecutive exits; `jitter` in 0..1 spreads them over the upper half."""
    longest = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(exits - 1, 20))
    return longest * (0.5 + jitter / 2)
