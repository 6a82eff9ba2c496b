"""A live view of agents, like `top`: the state, cores, actions and reward of each agent."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from arl_bench.demo.attempts import TrajectoryPlan
from arl_bench.demo.rollout import DemoRollout
from arl_core.domain.states import ActionState
from arl_wire.actions.action import Action

__all__ = ["AgentsView"]

BAR_WIDTH = 20
COMPUTES, WAITS, THINKS, SCORED, DONE = "computes", "waits for cores", "thinks", "is scored", "done"
COLOURS = {COMPUTES: "green", WAITS: "yellow", THINKS: "default", SCORED: "cyan", DONE: "dim"}
VERBS = {COMPUTES: "compute", WAITS: "wait", THINKS: "think"}


@dataclass(slots=True)
class AgentRow:
    """One agent of the view."""

    problem: str
    state: str = THINKS
    cores: float = 0.0
    actions: int = 0
    result: str = ""


class AgentsView:
    """The agents' state as last seen. It makes no requests itself."""

    def __init__(self, plans: Sequence[TrajectoryPlan], cores: float) -> None:
        self._cores = cores
        self._rows = {plan.name: AgentRow(plan.problem.entry_point) for plan in plans}

    def on_action(self, action: Action) -> None:
        """Count a settled action."""
        if row := self._row_of(action):
            row.actions += 1

    def on_rollout(self, rollout: DemoRollout) -> None:
        """Show the reward of an agent that has ended."""
        row = self._rows[rollout.plan.name]
        row.state, row.cores, row.result = DONE, 0.0, _result_text(rollout)

    def update(self, unsettled: Iterable[Action]) -> None:
        """Update the states from the actions that wait or run. Agents without such an action think."""
        for each in self._rows.values():
            if each.state != DONE:
                each.state, each.cores = THINKS, 0.0
        for action in unsettled:
            row = self._row_of(action)
            if row is None or row.state == DONE:
                continue
            if action.kind != "exec":
                row.state = SCORED
            elif action.state is ActionState.QUEUED:
                row.state = WAITS
            else:
                row.state = COMPUTES
                row.cores = (action.allocation or {}).get("cpu_milli", 0) / 1000

    def line(self, elapsed_s: float) -> str:
        """Return the view as one line, for outputs that cannot be redrawn."""
        done = sum(row.state == DONE for row in self._rows.values())
        actions = sum(row.actions for row in self._rows.values())
        return f"{elapsed_s:3.0f} s  {done:2} of {len(self._rows)} done, {actions:3} actions; {self._summary()}"

    def render(self) -> RenderableType:
        """Return the view as a table with a bar of the cores in use above it."""
        used = min(self._used_cores(), self._cores)
        filled = round(BAR_WIDTH * used / self._cores)
        bar = Text.assemble("  cores ", ("█" * filled, "green"), ("░" * (BAR_WIDTH - filled), "dim"))
        bar.append(f"  {self._summary()}")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading, width in (("  agent", 7), ("problem", 20), ("state", 15), ("cores", 5), ("actions", 7)):
            table.add_column(heading, width=width, no_wrap=True, justify="right" if width < 10 else "left")
        table.add_column("reward", no_wrap=True, overflow="ellipsis")
        for number, row in enumerate(self._rows.values(), 1):
            state = Text(row.state, style=COLOURS[row.state])
            cores = f"{row.cores:g}" if row.cores else ""
            table.add_row(str(number), row.problem, state, cores, str(row.actions), row.result)
        return Group(bar, table)

    def _summary(self) -> str:
        states = Counter(row.state for row in self._rows.values())
        counts = ", ".join(f"{states[state]} {verb}" for state, verb in VERBS.items())
        return f"{self._used_cores():g} of {self._cores:g} cores; {counts}"

    def _used_cores(self) -> float:
        return sum(row.cores for row in self._rows.values())

    def _row_of(self, action: Action) -> AgentRow | None:
        return self._rows.get((action.trajectory or "").rpartition("/")[2])


def _result_text(rollout: DemoRollout) -> str:
    if rollout.reward is None:
        return "masked"
    kind = rollout.plan.attempts[-1].kind
    return f"{rollout.reward:g}  {'reward hack' if kind == 'hack' else kind}"
