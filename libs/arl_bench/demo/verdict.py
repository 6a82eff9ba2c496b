"""A reward that the rewarded code cannot influence.

1. The test runs against the reference solution and its calls are recorded (once per problem). 2. The submitted code
runs on those inputs in a fresh environment without tests and answers. 3. The test runs against the recorded outputs in
another environment without submitted code.

Between 2 and 3 only plain data is passed. It is read by exact type and never evaluated.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from arl_bench.demo.problems import CodingProblem
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.operations import expect_ok, fetched_files
from arl_tangram.resources.reward_services import score_action, scores_of
from arl_wire.actions.action import Action

__all__ = ["CODE_OUTCOMES", "MODEL_KINDS", "RewardVerdict", "SolutionJudge", "program_text"]

CODE_OUTCOMES = frozenset(
    {ActionOutcome.OK, ActionOutcome.USER_ERROR, ActionOutcome.USER_TIMEOUT, ActionOutcome.LIMIT_EXCEEDED}
)
"""Outcomes that the code itself caused. Any other outcome is an infrastructure error and is masked."""

MODEL_KINDS = ("similarity", "relevance", "classifier")
"""Kinds of reward services that score a solution: likeness to the reference, relevance to the problem, quality."""
ActionTuple = tuple[Action, ...]

SCORE_TIMEOUT_S = 10.0
TRUSTED_TIMEOUT_S = 30.0
MAX_OUTPUT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RewardVerdict:
    """The verdict on a solution. `reward` None: an infrastructure error, which is masked and never counts as 0."""

    reward: float | None
    reason: str
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class CallRecording:
    """The calls that a problem's test makes, and the action that recorded them."""

    calls: list[object]
    action: Action


class SolutionJudge:
    def __init__(self, client: AsyncTangram, *, task: str, services: Mapping[str, str] | None = None) -> None:
        """Create a judge. `services`: a reward service for each kind in `MODEL_KINDS`. Other kinds are skipped."""
        self._client = client
        self._task = task
        self._services = services or {}
        self._recordings: dict[str, asyncio.Task[CallRecording]] = {}

    async def score(self, problem: CodingProblem, solution: str, *, trajectory: str) -> RewardVerdict:
        """Run the submitted code, then judge its outputs."""
        recorded, is_ours = await self._get_recording(problem, trajectory)
        calls = recorded.calls
        before = (recorded.action,) if is_ours else ()
        request = {"solution": solution, "entry_point": problem.entry_point, "calls": calls}
        ran = await self._run_program(
            "candidate", request, trajectory, timeout_s=SCORE_TIMEOUT_S, fetch=["outputs.json"]
        )
        if ran.outcome not in CODE_OUTCOMES:
            return RewardVerdict(None, f"masked: {ran.outcome} {ran.reason or ''}", (*before, ran))
        outputs = _parse_outputs(fetched_files(ran).get("outputs.json"))
        if ran.outcome is not ActionOutcome.OK or outputs is None or len(outputs) != len(calls):
            return RewardVerdict(0.0, f"no outputs: {ran.outcome}", (*before, ran))
        judged = await self._run_program(
            "judge",
            {"problem": problem.statement(), "calls": calls, "outputs": outputs},
            trajectory,
            timeout_s=TRUSTED_TIMEOUT_S,
        )
        return _to_verdict(ran, judged, before)

    async def model_scores(
        self, problem: CodingProblem, solution: str, *, trajectory: str
    ) -> tuple[dict[str, float], ActionTuple]:
        """Return scores of reward models by kind. They are additional rewards and not part of the verdict."""
        items = {
            "similarity": {"text": solution, "reference": problem.prompt + problem.canonical_solution},
            "relevance": {"text": solution, "reference": problem.prompt},
            "classifier": {"text": solution},
        }
        asked = {
            kind: score_action(service, [items[kind]], task=self._task, trajectory=trajectory, retries=2)
            for kind, service in self._services.items()
        }
        # With `return_exceptions`, a cancelled call waits until every score is cancelled.
        settled = await asyncio.gather(*map(self._client.run, asked.values()), return_exceptions=True)
        for each in settled:
            if isinstance(each, BaseException):
                raise each
        actions = [each for each in settled if isinstance(each, Action)]
        found = {
            kind: score
            for kind, action in zip(asked, actions, strict=True)
            if action.outcome in CODE_OUTCOMES and (score := scores_of(action)[0].score) is not None
        }
        return found, tuple(actions)

    async def _get_recording(self, problem: CodingProblem, trajectory: str) -> tuple[CallRecording, bool]:
        """Return the recording of a problem, and True if this call started it. The next call repeats a failed
        recording.
        """
        task = self._recordings.get(problem.task_id)
        is_first = task is None or (task.done() and task.exception() is not None)
        if task is None or is_first:
            task = self._recordings[problem.task_id] = asyncio.create_task(self._record_calls(problem, trajectory))
        return await task, is_first

    async def _record_calls(self, problem: CodingProblem, trajectory: str) -> CallRecording:
        ran = await self._run_program(
            "record", problem.statement(), trajectory, timeout_s=TRUSTED_TIMEOUT_S, fetch=["calls.json"]
        )
        calls: list[object] = json.loads(fetched_files(expect_ok(ran))["calls.json"])
        return CallRecording(calls, ran)

    async def _run_program(
        self, name: str, request: object, trajectory: str, *, timeout_s: float, fetch: list[str] | None = None
    ) -> Action:
        return await self._client.run(
            task=self._task,
            argv=["python3", f"{name}.py"],
            files={
                f"{name}.py": program_text(name),
                "codec.py": program_text("codec"),
                "request.json": json.dumps(request, ensure_ascii=False),
            },
            env={"PYTHONHASHSEED": "0"},
            fetch=fetch or [],
            timeout_s=timeout_s,
            memory_mib=256,
            retries=2,
            trajectory=trajectory,
            scope="ephemeral",
        )


def _to_verdict(ran: Action, judged: Action, before: tuple[Action, ...]) -> RewardVerdict:
    actions = (*before, ran, judged)
    if judged.outcome is not ActionOutcome.OK or judged.result is None:
        # Unreadable data is a wrong answer; an infrastructure error is not a reward of 0.
        return RewardVerdict(0.0 if judged.outcome in CODE_OUTCOMES else None, f"judge: {judged.outcome}", actions)
    said = json.loads(judged.result.stdout.text)
    return RewardVerdict(1.0 if said["passed"] is True else 0.0, said["reason"], actions)


def _parse_outputs(content: bytes | None) -> list[object] | None:
    """Parse a JSON list of objects. Return None for any other content and for outputs that are too large."""
    try:
        value = json.loads(content) if content and len(content) <= MAX_OUTPUT_BYTES else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else None


def program_text(name: str) -> str:
    """Return the source of a demo program that runs in a sandbox."""
    return files("arl_bench.demo.programs").joinpath(f"{name}.py").read_text()
