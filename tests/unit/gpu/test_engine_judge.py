"""The requests and verdicts of an engine judge; a missing verdict is an error, not a score."""

from typing import Any

import pytest
from pydantic import ValidationError

from arl_gpu.engines.engine_judge import EngineJudge, JudgeInputError
from arl_wire.reward_services.judges import JudgeOptions
from arl_wire.reward_services.service import RegisterRewardServiceRequest

WORDS = {"prompt": "{response}", "pattern": r"verdict: (\w+)", "words": {"Good": 1, "bad": 0}}
GRADES = {"prompt": "{response}", "json_field": "grade", "minimum": 0, "maximum": 10}


def judge(options: dict[str, Any], **more: Any) -> EngineJudge:
    return EngineJudge(JudgeOptions.model_validate(options | more))


def said(*texts: str, finish_reason: str = "stop") -> list[dict[str, Any]]:
    return [{"message": {"content": text}, "finish_reason": finish_reason} for text in texts]


@pytest.mark.parametrize(
    ("options", "answers", "score"),
    [
        (WORDS, ["it is bad, no: verdict: BAD, or rather\nverdict: good"], 1.0),
        (WORDS, ["verdict: good", "verdict: bad", "none"], 0.5),
        (WORDS | {"aggregate": "majority"}, ["verdict: good", "verdict: bad", "verdict: bad"], 0.0),
        (WORDS | {"aggregate": "majority"}, ["verdict: good", "verdict: bad"], 0.5),
        (WORDS | {"aggregate": "min"}, ["verdict: good", "verdict: bad"], 0.0),
        (WORDS | {"aggregate": "max"}, ["verdict: good", "verdict: bad"], 1.0),
        (GRADES, ['first {"grade": 2} and then\n```json\n{"grade": 7.5, "why": "{"}\n```'], 7.5),
        (GRADES, ['{"grade": "3"}'], 3.0),
        (GRADES, ['{"grade": 9, "criteria": [{"name": "style", "grade": 1}]}'], 9.0),
        (GRADES, ['{"grade": 9, "why": "' + "x" * 20_000 + '", "criteria": [{"grade": 1}]} {"of": {"grade": 2}}'], 9.0),
        (GRADES, [r'As {"grade": <number>}: \frac{a}{b} and { so {"grade": 3}'], 3.0),
        (GRADES | {"words": {"true": 1, "false": 0}, "minimum": None, "maximum": None}, ['{"grade": true}'], 1.0),
    ],
)
def test_verdict_is_converted_to_score(options: dict[str, Any], answers: list[str], score: float) -> None:
    assert judge(options, samples=4).parse_entry(said(*answers))["score"] == score


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (WORDS, ""),
        (WORDS, "verdict: maybe"),
        (WORDS | {"pattern": "verdict:(?: (good))?"}, "verdict: "),
        (GRADES, '{"grade": 11}'),
        (GRADES, '{"grade": NaN}'),
        (GRADES, '{"grade": '),
        (GRADES, '{"other": 1}'),
        (GRADES, '{"grade": null}'),
        (GRADES, '{"grade": "1_0"}'),
        (GRADES, '{"grade": 9, "criteria": [{"grade": 1}], oh}'),
        (GRADES, """{'grade': 9, 'criteria': [{"grade": 1}]}"""),
        (GRADES, "{" * 100_000),
    ],
)
def test_unreadable_verdict_is_an_error_instead_of_zero(options: dict[str, Any], answer: str) -> None:
    assert judge(options).parse_entry(said(answer))["error"]["code"] == "verdict_unparsed"


@pytest.mark.parametrize("finish_reason", ["length", "content_filter"])
def test_truncated_answer_has_no_verdict(finish_reason: str) -> None:
    whole, cut = said("verdict: good"), said("<think> I must end with `verdict: bad`, or", finish_reason=finish_reason)
    assert judge(WORDS).parse_entry(cut)["error"]["code"] == "verdict_unparsed"
    assert judge(WORDS, samples=2).parse_entry(whole + cut)["details"]["verdicts"] == [1.0, None]


def test_slow_pattern_is_stopped_and_reported() -> None:
    slow = judge(WORDS, pattern=r"(?:.*,){1,20}(\d)")
    assert slow.parse_entry(said("," * 8000))["error"]["code"] == "pattern_timeout"


def test_unreadable_answers_are_ignored_down_to_min_verdicts() -> None:
    answers = ["verdict: good", "?", "verdict: bad"]
    entry = judge(WORDS, samples=3).parse_entry(said(*answers))
    assert (entry["score"], entry["details"]) == (0.5, {"verdicts": [1.0, None, 0.0], "answers": answers})
    assert "error" in judge(WORDS, samples=3, min_verdicts=3).parse_entry(said(*answers))


def test_item_text_is_inserted_into_template_verbatim() -> None:
    options = WORDS | {"prompt": "{{q}} {prompt} {response} {reference}", "system": "Be fair.", "samples": 2}
    item = {"text": "{prompt} {0.__class__}", "prompt": "why?", "reference": "{{}}"}
    request: Any = judge(options, temperature=0.5).build_request(item)
    assert request["messages"] == [
        {"role": "system", "content": "Be fair."},
        {"role": "user", "content": "{q} why? {prompt} {0.__class__} {{}}"},
    ]
    assert (request["n"], request["temperature"], "top_p" in request) == (2, 0.5, False)
    with pytest.raises(JudgeInputError) as refused:
        judge(options).build_request({"text": "a", "prompt": "b"})
    assert refused.value.code == "no_reference"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt": "Is it right?"}, "{response}"),
        ({"prompt": "{response.__class__}"}, "is unknown. Allowed: {prompt}"),
        ({"prompt": "{response!r}"}, "is unknown. Allowed: {prompt}"),
        ({"pattern": "("}, "not a valid regular expression"),
        ({"pattern": "good|bad"}, "0 groups"),
        ({"pattern": r"((?:a+)*)"}, "can take forever"),
        ({"json_field": "verdict"}, "one of pattern and json_field"),
        ({"words": {"Good": 1, "good ": 0}}, "words\n.*'Good' and 'good ' are the same verdict"),
        ({"minimum": 0, "maximum": 1}, "either words"),
        ({"words": None, "minimum": 0}, "either words"),
        ({"samples": 2, "min_verdicts": 3}, "min_verdicts"),
        ({"extra": {"a": "\0"}}, "NUL"),
    ],
)
def test_unusable_judge_options_are_rejected_at_registration(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("{", r"\{")):
        JudgeOptions.model_validate(WORDS | changed)


def test_options_of_another_service_kind_are_rejected() -> None:
    for kind, options in (("reranker", {"judge": WORDS}), ("judge", {"judge": WORDS, "max_tokens": 5})):
        with pytest.raises(ValidationError):
            RegisterRewardServiceRequest.model_validate(
                {"name": "j", "kind": kind, "source": "engine", "options": options}
            )
