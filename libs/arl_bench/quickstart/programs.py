"""Three programs that show how an outcome becomes a reward: a right, a wrong and an endless one."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_wire.actions.action import Action

__all__ = ["FIRST_PROGRAMS", "FirstProgram", "ProgramRun", "explain_run", "reward_of", "run_programs"]

TASK = "quickstart"
TIME_LIMIT_S = 2.0
MEMORY_MIB = 64


@dataclass(frozen=True, slots=True)
class FirstProgram:
    """A program of one line, with the outcome that it deserves."""

    name: str
    source: str
    expected: ActionOutcome


@dataclass(frozen=True, slots=True)
class ProgramRun:
    program: FirstProgram
    action: Action

    @property
    def is_expected(self) -> bool:
        return self.action.outcome is self.program.expected


FIRST_PROGRAMS = (
    FirstProgram("right", "assert sorted([3, 1, 2]) == [1, 2, 3]", ActionOutcome.OK),
    FirstProgram("wrong", "assert sorted([3, 1, 2]) == [3, 2, 1]", ActionOutcome.USER_ERROR),
    FirstProgram("endless", "while True: pass", ActionOutcome.USER_TIMEOUT),
)


async def run_programs(client: AsyncTangram) -> AsyncIterator[ProgramRun]:
    """Run the programs one after the other, each in a sandbox of its own."""
    for program in FIRST_PROGRAMS:
        action = await client.run(task=TASK, source=program.source, timeout_s=TIME_LIMIT_S, memory_mib=MEMORY_MIB)
        yield ProgramRun(program, action)


def reward_of(action: Action) -> float | None:
    """Return 1 for a success and 0 for a failure of the program. None masks an infrastructure error."""
    if action.masked:
        return None
    return 1.0 if action.ok else 0.0


def explain_run(run: ProgramRun) -> str:
    """Return one sentence: the outcome, the reward and the cause."""
    reward = reward_of(run.action)
    if reward is None:
        return f"{run.action.outcome}, no reward: masked ({run.action.reason}), never 0."
    return f"{run.action.outcome}, reward {reward:g}: {_cause(run.action)}."


def _cause(action: Action) -> str:
    match action.outcome:
        case ActionOutcome.OK:
            return f"the assertion holds, run time {action.times.run_s or 0:.2f} s"
        case ActionOutcome.USER_ERROR:
            return f"the assertion fails, exit code {action.exit_code}"
        case ActionOutcome.USER_TIMEOUT:
            return f"the program failed, stopped after {TIME_LIMIT_S:g} s"
        case _:
            return f"the program exceeds a limit ({action.reason})"
