"""The verifiable-reward program on its own: correct answers, wrong answers and errors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arl_admission.verifiers.programs

PROGRAM = Path(arl_admission.verifiers.programs.__file__).with_name("verify.py")
CATASTROPHIC = {"text": "a" * 40 + "!", "reference": "(a+)+"}


def verified(
    kind: str, *items: dict[str, str], within_s: float = 30.0, packages: Path | None = None
) -> list[dict[str, Any]]:
    """Run the verifier in a Python that finds `packages` before all other packages."""
    request = json.dumps({"kind": kind, "items": items, "within_s": within_s})
    env = os.environ | ({"PYTHONPATH": str(packages)} if packages is not None else {})
    done = subprocess.run(
        [sys.executable, PROGRAM], input=request, capture_output=True, text=True, check=False, env=env
    )
    entries: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == (0 if any("score" in entry for entry in entries) else 1)
    return entries


@pytest.mark.parametrize(
    ("kind", "text", "reference", "score"),
    [
        ("exact", " 42\n", "42", 1.0),
        ("exact", "42.", "42", 0.0),
        ("regex", "The answer is 42", r".*\b42", 1.0),
        ("regex", "The answer is 421", r".*\b42", 0.0),
        ("json", '{"a": [1, 2.0]}', '{"a": [1.0, 2]}', 1.0),
        ("json", '{"a": true}', '{"a": 1}', 0.0),
        ("json", "no", "{}", 0.0),
        ("json", "[NaN, -Infinity]", "[]", 0.0),
        ("json", "9" * 5000, "9" * 5000, 1.0),
        ("json", "9" * 5000, "9" * 4999 + "8", 0.0),
        ("json", "1e400", "1e999", 0.0),
        ("json", "1e-400", "0", 0.0),
        ("json", "1e400", "1" + "0" * 400, 1.0),
    ],
)
def test_verifier_scores_item_one_or_zero(kind: str, text: str, reference: str, score: float) -> None:
    assert verified(kind, {"text": text, "reference": reference}) == [{"score": score}]


@pytest.mark.parametrize(
    ("kind", "item", "code"),
    [
        ("regex", {"text": "a", "reference": "("}, "bad_pattern"),
        ("json", {"text": "1", "reference": "no"}, "bad_reference"),
        ("json", {"text": "1", "reference": "NaN"}, "bad_reference"),
        ("json", {"text": "[" * 3000 + "]" * 3000, "reference": "[]"}, "verifier_failed"),
    ],
)
def test_unverifiable_item_returns_error_instead_of_zero(kind: str, item: dict[str, str], code: str) -> None:
    [entry] = verified(kind, item)
    assert (entry["error"]["code"], "score" in entry) == (code, False)


@pytest.mark.slow
def test_endless_pattern_times_out_without_affecting_next_item() -> None:
    bomb, good = verified("regex", CATASTROPHIC, {"text": "a", "reference": "a"}, within_s=60)[:2]
    assert bomb["error"]["code"] == "verifier_timeout"
    assert good == {"score": 1.0}


def test_item_without_time_left_returns_no_time_left_error() -> None:
    bomb, late = verified("regex", CATASTROPHIC, {"text": "a", "reference": "a"}, within_s=0.2)
    assert [each["error"]["code"] for each in (bomb, late)] == ["no_time_left"] * 2


def test_interpreter_start_up_time_counts_against_action_timeout(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(0.3)")
    [entry] = verified("exact", {"text": "a", "reference": "a"}, within_s=0.3, packages=tmp_path)
    assert entry["error"]["code"] == "no_time_left"


LIBRARY = """
with open(__file__ + ".imported", "a") as file:
    file.write("x")

def parse(text, parsing_timeout, raise_on_error):
    if "large" in text:
        raise MemoryError if raise_on_error else SystemExit
    return [(text,)]

def verify(wanted, said, timeout_seconds, raise_on_error):
    if "recursive" in said[0][0] and raise_on_error:
        raise RecursionError
    return said[0][0].endswith("k}")
"""
UNREAD = "\\prod_{k=1}^{3} k"
"""A reference that only the library reads."""


def test_math_library_failure_returns_error_and_library_is_imported_once(tmp_path: Path) -> None:
    library = tmp_path / "math_verify.py"
    library.write_text(LIBRARY)
    texts = ["\\boxed{\\prod large}", "\\boxed{\\prod recursive}", "\\boxed{\\prod k}", "\\boxed{\\prod 2}"]
    items = [{"text": each, "reference": UNREAD} for each in texts]
    *failed, right, wrong = verified("math", *items, packages=tmp_path)
    assert [each["error"]["code"] for each in failed] == ["verifier_failed"] * 2
    assert (right, wrong) == ({"score": 1.0}, {"score": 0.0})
    assert library.with_name("math_verify.py.imported").read_text() == "x"


@pytest.mark.slow
class TestMathVerifier:
    @pytest.fixture(autouse=True)
    def _needs_math_verify(self) -> None:
        pytest.importorskip("math_verify")

    @pytest.mark.parametrize(
        ("text", "reference", "score"),
        [
            ("so it is $\\frac{1}{2}$", "$0.5$", 1.0),
            ("\\boxed{x^2 + 2x + 1}", "$(x+1)^2$", 1.0),
            ("the answer is $41$", "$42$", 0.0),
            ("I don't know", "$42$", 0.0),
            ("$\\boxed{10\\pi}$", "10\\pi", 1.0),
            ("\\boxed{10}", "10\\pi", 0.0),
            ("$\\sqrt{3}$", "\\sqrt{3}", 1.0),
            ("$3$", "\\sqrt{3}", 0.0),
            ("\\boxed{1 + x^2}", "x^2+1", 1.0),
            ("\\boxed{(1,2)}", "(1,2)", 1.0),
            ("\\boxed{(2,1)}", "(1,2)", 0.0),
            ("\\boxed{\\text{east}}", "\\text{east}", 1.0),
            ("\\boxed{\\text{west}}", "\\text{east}", 0.0),
            ("It is 42.", "42", 1.0),
            ("$0.5$", "\\frac{1}{2}", 1.0),
            ("\\boxed{72}", "She sold 48 + 24 = <<48+24=72>>72 clips.\n#### 72", 1.0),
            ("\\boxed{7}", "The answer is 7", 1.0),
            ("\\boxed{5}", "5.", 1.0),
            ("\\boxed{3.5}", "3.5.", 1.0),
            ("\\boxed{3}", "Answer: 3", 1.0),
            ("\\boxed{3}", "x is 3", 1.0),
            ("\\boxed{8}", "A total of 8", 1.0),
            ("\\boxed{20}", "20 minutes.", 1.0),
            ("\\boxed{\\frac{1}{2}}", "Answer: \\frac{1}{2}", 1.0),
            ("\\boxed{10\\pi}", "10\\pi \\text{ square units}", 1.0),
            ("\\boxed{10}", "10\\pi \\text{ square units}", 0.0),
            ("\\boxed{A}", "A", 1.0),
            ("\\boxed{B}", "A", 0.0),
            ("\\boxed{east}", "east", 1.0),
            ("\\boxed{west}", "east", 0.0),
        ],
    )
    def test_answers_are_compared_as_expressions(self, text: str, reference: str, score: float) -> None:
        assert verified("math", {"text": text, "reference": reference}) == [{"score": score}]

    def test_reference_without_answer_returns_bad_reference_error(self) -> None:
        assert (
            verified("math", {"text": "$1$", "reference": "There is no answer"})[0]["error"]["code"] == "bad_reference"
        )
