"""Run a task of Inspect in the sandbox `tangram`: `python inspect_task.py DIRECTORY`. Prints the results as JSON."""

import json
import sys

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import sandbox


@solver
def write_answer():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file("answer.txt", state.input_text)
        if state.input_text == "lost":  # as if the node had lost it
            await sandbox()._sandbox._programs.environment.end()
        return state

    return solve


@scorer(metrics=[accuracy()])
def compare_file():
    async def score(state: TaskState, target: Target) -> Score:
        found = await sandbox().exec(["sh", "-c", "cat answer.txt setup.txt; printf $GREETING"])
        return Score(value=1.0 if found.stdout == target.text else 0.0)

    return score


samples = [
    Sample(input="42", target="42setuphello", files={"setup.txt": "setup"}),
    Sample(input="43", target="42setuphello", files={"setup.txt": "setup"}),
    Sample(input="lost", target="-", files={"setup.txt": "setup"}),
]
task = Task(
    dataset=samples,
    solver=write_answer(),
    scorer=compare_file(),
    sandbox=("tangram", f"{sys.argv[1]}/sandbox.yaml"),
    fail_on_error=False,
)
[log] = evaluate(task, model="mockllm/model", log_dir=f"{sys.argv[1]}/logs", display="none")
scores = [{name: score.value for name, score in (each.scores or {}).items()} for each in log.samples]
errors = [each.error.message.splitlines()[0] if each.error is not None else None for each in log.samples]
print(json.dumps({"status": log.status, "scores": scores, "errors": errors}))
