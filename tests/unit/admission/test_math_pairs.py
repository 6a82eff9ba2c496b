"""The verifier `math` on pairs of a reference and a response, with what a careful grader says of the last answer."""

import csv
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\t": "\t"}


class MathPair(NamedTuple):
    """A row of the table. The verdict is `1`, `0` or the code of an error."""

    kind: str
    reference: str
    response: str
    verdict: str


def _unescaped(text: str) -> str:
    found, at = [], 0
    while at < len(text):
        found.append(ESCAPES.get(text[at : at + 2], text[at]))
        at += 2 if text[at : at + 2] in ESCAPES else 1
    return "".join(found)


def _read_pairs() -> list[MathPair]:
    with Path(__file__).with_name("math_pairs.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [MathPair(kind, _unescaped(reference), _unescaped(text), right) for kind, reference, text, right in rows]


PAIRS = _read_pairs()


Grader = Callable[[MathPair], str]


@pytest.fixture(scope="module")
def library() -> ModuleType:
    """Import math-verify, which takes about a second."""
    module = pytest.importorskip("math_verify")
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return module


@pytest.fixture(scope="module")
def verdict(library: ModuleType) -> Grader:
    """Return the function that grades a pair as the program does, without a process of its own."""
    from arl_admission.verifiers.programs.expressions import Unreadable
    from arl_admission.verifiers.programs.grading import grade

    def graded(pair: MathPair) -> str:
        try:
            return str(int(grade(pair.response, pair.reference, library)))
        except Unreadable:
            return "bad_reference"

    return graded


def test_math_grades_every_pair_right(verdict: Grader) -> None:
    assert [pair for pair in PAIRS if verdict(pair) != pair.verdict] == []


def test_table_has_pairs_of_every_verdict() -> None:
    assert len(PAIRS) >= 450
    assert {pair.verdict for pair in PAIRS} == {"0", "1", "bad_reference"}


@pytest.mark.slow
def test_math_is_never_worse_than_math_verify_alone(verdict: Grader, library: ModuleType) -> None:
    """The library reads the reference in a box, and any formula or number of the response, as trainers call it."""
    metric = library.metric.math_metric(
        gold_extraction_target=(library.LatexExtractionConfig(),),
        pred_extraction_target=(library.ExprExtractionConfig(), library.LatexExtractionConfig()),
    )

    def alone(pair: MathPair) -> str:
        try:
            score, _ = metric([f"\\boxed{{{pair.reference}}}"], [pair.response])
        except (Exception, library.errors.TimeoutException):  # noqa: BLE001  # trainers score any error as 0
            return "0"
        return str(int(score))

    right = [pair for pair in PAIRS if pair.verdict in "01" and alone(pair) == pair.verdict]
    assert len(right) > len(PAIRS) // 3
    assert [pair for pair in right if verdict(pair) != pair.verdict] == []


@pytest.mark.parametrize(
    "response",
    [
        "12, " * 60_000,
        "\\boxed{" * 50_000,
        "\\boxed{4}" * 30_000,
        "the answer is " * 30_000,
        "\n" * 500_000,
        "\\boxed{9^{9^{9^{9}}}}",
        "\\boxed{99999999999!}",
        "\\boxed{\\binom{10^9}{5\\cdot 10^8}}",
        "\\boxed{(x+1)^{100000}}",
        "\\boxed{" + "(" * 50_000 + "}",
    ],
    ids=lambda response: response[:12],
)
def test_hostile_response_is_wrong_and_not_a_timeout(verdict: Grader, response: str) -> None:
    assert verdict(MathPair("hostile", "x^2+1", response, "0")) == "0"
