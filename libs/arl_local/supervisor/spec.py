"""What the supervisor is told about a process, and how long it waits before it starts one again."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from arl_kit.child_process import UnixAccount

__all__ = ["ProcessSpec", "restart_delay_s"]

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process: how to start it, when it counts as ready, and how it is stopped."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment: nothing is inherited."""
    ready: str | Callable[[], Awaitable[bool]]
    """An http URL that answers 200, or a question; asked often until the first yes, from then on now and then."""
    probe_interval_s: float = 5.0
    """How often it is asked once it was ready: whoever is not any more is unready, and not started again for it."""
    account: UnixAccount | None = None
    before_start: Callable[[], Awaitable[None]] | None = None
    """Awaited before every start."""
    stop_order: int = 0
    """Lower numbers are stopped first; equal ones together."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 25.0
    fatal_exit_codes: frozenset[int] = frozenset()
    """With these it says that starting it again will not help."""


def restart_delay_s(exits: int, *, jitter: float) -> float:
    """How long to wait after so many deaths in a row; `jitter` in 0..1 spreads it over the upper half."""
    longest = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(exits - 1, 20))
    return longest * (0.5 + jitter / 2)
