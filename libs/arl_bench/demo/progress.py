"""Progress of the rollouts under one policy: a bar on a terminal, a line every ten seconds in a file or a pipe."""

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from arl_bench.demo.rollout import DemoRollout
from arl_wire.actions.action import Action

__all__ = ["RolloutProgress", "can_animate"]

LINE_INTERVAL_S = 10.0


def can_animate(console: Console) -> bool:
    """Return True if the console is a terminal that can redraw lines. Colours may be forced elsewhere too."""
    return console.is_interactive and console.file.isatty()


class RolloutProgress:
    """A context that counts actions and rollouts and prints them. Its first and its last line are permanent."""

    def __init__(
        self,
        name: str,
        total: int,
        console: Console,
        *,
        phase: str = "starting a system",
        interval_s: float = LINE_INTERVAL_S,
    ) -> None:
        self._name = name
        self._total = total
        self._console = console
        self._phase = phase
        self._interval_s = interval_s
        self._actions = 0
        self._rollouts = 0
        self._started_at = time.monotonic()
        self._ended = threading.Event()
        self._printer = threading.Thread(target=self._print_lines, daemon=True)
        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task(f"{name}: {phase}", total=total)

    def __enter__(self) -> Self:
        self._started_at = time.monotonic()
        if can_animate(self._console):
            self._bar.start()
        else:
            self._print(f"{self._name}: {self._phase}, {self._total} rollouts")
            self._printer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._printer.is_alive():
            self._printer.join()
        if can_animate(self._console):
            self._bar.stop()
        if error is None:
            self._print(self.line())

    def on_action(self, action: Action) -> None:
        self._actions += 1
        self._bar.update(self._task, description=f"{self._name}: {self._actions} actions, rollouts")

    def on_rollout(self, rollout: DemoRollout) -> None:
        self._rollouts += 1
        self._bar.advance(self._task)

    def line(self) -> str:
        """Return the progress as one line."""
        elapsed_s = time.monotonic() - self._started_at
        done = f"{self._rollouts} of {self._total} rollouts done, {self._actions} actions"
        return f"{self._name}: {elapsed_s:3.0f} s, {done}"

    def _print_lines(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._print(self.line())

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False)
