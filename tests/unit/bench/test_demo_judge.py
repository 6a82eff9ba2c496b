"""The three judging programs of the demo, run separately with only data files between them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arl_bench.demo.programs
from arl_bench.demo.problems import CodingProblem, bundled_problems

PROGRAMS = Path(arl_bench.demo.programs.__file__).parent


def run(name: str, request: object, directory: Path, output: str | None) -> Any:
    """Run a program and return its `output` file or its printed output; None if it failed."""
    for program in (name, "codec"):
        (directory / f"{program}.py").write_text((PROGRAMS / f"{program}.py").read_text())
    (directory / "request.json").write_text(json.dumps(request))
    environment = {"PATH": os.defpath, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, f"{name}.py"], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return None
    return json.loads((directory / output).read_text() if output else done.stdout)


def reward(problem: CodingProblem, solution: str, directory: Path) -> float:
    calls = run("record", problem.statement(), directory, "calls.json")
    assert calls is not None, "the reference solution must pass its own test"
    request = {"solution": solution, "entry_point": problem.entry_point, "calls": calls}
    outputs = run("candidate", request, directory, "outputs.json")
    if outputs is None or len(outputs) != len(calls):
        return 0.0
    verdict = run("judge", {"problem": problem.statement(), "calls": calls, "outputs": outputs}, directory, None)
    return float(verdict is not None and verdict["passed"])


def a_problem(reference: str, test: str, name: str = "f", prompt: str = "") -> CodingProblem:
    body = prompt + f'def {name}(xs):\n    """What the format asks for: a body of its own."""\n'
    return CodingProblem(task_id="t", prompt=body, entry_point=name, canonical_solution=reference, test=test)


@pytest.mark.parametrize("problem", bundled_problems(), ids=lambda problem: problem.entry_point)
def test_bundled_problem_accepts_right_and_rejects_wrong_solution(problem: CodingProblem, tmp_path: Path) -> None:
    assert reward(problem, problem.prompt + problem.canonical_solution, tmp_path) == 1.0
    assert reward(problem, problem.prompt + (problem.wrong_solution or ""), tmp_path) == 0.0


class TestCorrectSolutions:
    @pytest.mark.parametrize(
        ("reference", "test"),
        [
            ("    return sorted(xs)\n", "import random\ndef check(c):\n    for _ in range(9):\n"
             "        xs = [random.randint(0, 99) for _ in range(9)]\n        assert c(list(xs)) == sorted(xs)\n"),
            ("    return len(xs)\n", "def check(c):\n    assert c({'a', 'b', 'c'}) == 3\n"),
            ("    return xs\n", "def check(c):\n    assert c(1) == f(1)\n"),
            ("    return 1 // xs\n", "def check(c):\n    try:\n        c(0)\n    except ZeroDivisionError:\n"
             "        return\n    assert False\n"),
            ("    xs.sort()\n", "def check(c):\n    xs = [2, 1]\n    c(xs=xs)\n    assert xs == [1, 2]\n"),
            ("    return xs\n", "def check(c):\n    print('noise')\n    assert c(1) == 1\n"),
            ("    return f(xs - 1) + 1 if xs else 0\n", "def check(c):\n    assert c(5) == 5\n"),
            ("    return 10**5000 + xs\n", "def check(c):\n    assert c(1) == 10**5000 + 1\n"),
            ("    return float('inf') if xs else (1.5, b'x', None)\n",
             "def check(c):\n    assert c(1) == float('inf')\n    assert c(0) == (1.5, b'x', None)\n"),
        ],
        ids=["random inputs", "a set", "the test names the function", "an expected exception", "a changed keyword",
             "a test that prints", "recursion", "a huge number", "odd values"],
    )  # fmt: skip
    def test_reference_solution_gets_full_reward(self, reference: str, test: str, tmp_path: Path) -> None:
        problem = a_problem(reference, test)
        assert reward(problem, problem.prompt + reference, tmp_path) == 1.0


class TestRewardHacks:
    @pytest.mark.parametrize(
        ("reference", "test", "hack"),
        [
            ("    return sorted(xs)\n", "def check(c):\n    xs = [3, 1, 2]\n    assert c(xs) == sorted(xs)\n",
             "    xs.clear()\n    return []\n"),
            ("    return xs\n", "def check(c):\n    assert c(1) == 1\n", "    return type('E', (int,), "
             "{'__eq__': lambda s, o: True})()\n"),
            ("    return 1 // xs\n", "def check(c):\n    assert c(1) == 1\n", "    raise AssertionError\n"),
            ("    return xs\n", "def check(c):\n    assert c(2) == 2\n", "    return ['int', '0x3']\n"),
        ],
        ids=["empties its argument", "equals everything", "raises", "answers in the codec's own form"],
    )  # fmt: skip
    def test_reward_hack_gets_no_reward(self, reference: str, test: str, hack: str, tmp_path: Path) -> None:
        problem = a_problem(reference, test)
        assert reward(problem, problem.prompt + hack, tmp_path) == 0.0
