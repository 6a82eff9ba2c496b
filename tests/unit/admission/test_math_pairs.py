"""The verifier `math` on pairs of a reference and a response, with what a careful grader says of the last answer."""

import csv
import logging
from pathlib import Path
from typing import NamedTuple

import pytest

math_verify = pytest.importorskip("math_verify")

from arl_admission.verifiers.programs.expressions import Unreadable  # noqa: E402  # it needs the packages of math-verify
from arl_admission.verifiers.programs.grading import grade  # noqa: E402

ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\t": "\t"}
SAMPLE_STEP = 8
"""Every eighth pair runs in the gate; all run with the slow tests."""


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


def _verdict(pair: MathPair) -> str:
    try:
        return str(int(grade(pair.response, pair.reference, math_verify)))
    except Unreadable:
        return "bad_reference"


@pytest.fixture(autouse=True)
def _quiet_library() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)


def test_math_grades_a_sample_of_pairs_right() -> None:
    assert [pair for pair in PAIRS[::SAMPLE_STEP] if _verdict(pair) != pair.verdict] == []


def test_table_has_pairs_of_every_verdict() -> None:
    assert len(PAIRS) >= 450
    assert {pair.verdict for pair in PAIRS} == {"0", "1", "bad_reference"}


@pytest.mark.slow
def test_math_grades_every_pair_right() -> None:
    assert [pair for pair in PAIRS if _verdict(pair) != pair.verdict] == []


@pytest.mark.slow
def test_math_is_never_worse_than_math_verify_alone() -> None:
    """The library reads the reference in a box, and any formula or number of the response, as trainers call it."""
    metric = math_verify.metric.math_metric(
        gold_extraction_target=(math_verify.LatexExtractionConfig(),),
        pred_extraction_target=(math_verify.ExprExtractionConfig(), math_verify.LatexExtractionConfig()),
    )
    right = [pair for pair in PAIRS if pair.verdict in "01" and _library_verdict(metric, pair) == pair.verdict]
    assert len(right) > len(PAIRS) // 3
    assert [pair for pair in right if _verdict(pair) != pair.verdict] == []


def _library_verdict(metric: object, pair: MathPair) -> str:
    try:
        score, _ = metric([f"\\boxed{{{pair.reference}}}"], [pair.response])  # type: ignore[operator]
    except (Exception, math_verify.errors.TimeoutException):  # noqa: BLE001  # trainers take any error for a wrong answer
        return "0"
    return str(int(score))
