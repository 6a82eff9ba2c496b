"""Progress of the start-up, and the system in the foreground."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from arl_tangram.cli.local_state import LocalState
from arl_tangram.cli.output import EXIT_FAILED, stderr

__all__ = ["StartupProgress", "run_in_foreground"]

_POLL_INTERVAL_S = 1.0


class StartupProgress:
    """A status line of the start-up. A terminal updates one line; other outputs get a line for each step."""

    def __init__(self, state: LocalState) -> None:
        self._state = state
        self._shown = ""
        self._status = stderr.status("starting")

    def __enter__(self) -> Self:
        if stderr.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.stop()

    def show_phase(self, *, pid: int) -> str:
        """Show and return the current phase of the supervisor with this pid."""
        seen = self._state.processes()
        if not seen or seen["supervisor"]["pid"] != pid:
            return "starting"
        if (message := seen["message"] or seen["phase"]) != self._shown and seen["phase"] == "starting":
            self._shown = message
            if stderr.is_terminal:
                self._status.update(message)
            else:
                stderr.print(message, markup=False)
        return str(seen["phase"])


def run_in_foreground(state: LocalState, supervisor: subprocess.Popen[bytes]) -> int:
    """Run the system until Ctrl-C, SIGTERM or SIGHUP, then drain it. Return 0 if the supervisor ended normally.

    The supervisor also drains if this process is killed, because its standard input ends.
    """
    stderr.print("Ctrl-C stops the system")
    restarts: dict[str, int] = {}
    with _forward_stop_signals(supervisor):
        while True:
            try:
                code = supervisor.wait(_POLL_INTERVAL_S)
            except subprocess.TimeoutExpired:
                _report_restarts(state, restarts)
                continue
            break
    if code != 0:
        stderr.print(
            f"tangram: the supervisor ended with code {code}; see `tangram system logs supervisor`", markup=False
        )
        return EXIT_FAILED
    stderr.print("stopped")
    return 0


@contextmanager
def _forward_stop_signals(supervisor: subprocess.Popen[bytes]) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        stderr.print("draining")
        supervisor.terminate()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _report_restarts(state: LocalState, reported: dict[str, int]) -> None:
    for name, process in state.processes().get("processes", {}).items():
        if process["restarts"] > reported.get(name, 0):
            reported[name] = process["restarts"]
            stderr.print(f"{name} ended ({process['last_exit']}) and was restarted", markup=False)
