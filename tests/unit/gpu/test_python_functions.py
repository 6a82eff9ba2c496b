"""One's own functions as services: what they return, and what they do wrong, is their item's."""

import pytest

from arl_gpu.models.interface import RewardModel
from arl_gpu.models.loader import load
from arl_gpu.models.python_function import PythonFunctionModel


@pytest.fixture(params=["length", "length_later"])
def model(request: pytest.FixtureRequest) -> RewardModel:
    options = {"callable": f"support.rewards:{request.param}"}
    return load({"name": "own", "kind": "python", "directory": ".", "options": options})


def test_what_a_function_does_is_an_entry_of_its_item_alone(model: RewardModel) -> None:
    texts = ["abc", "raise", "exit", "nothing", "nan", "huge", "large", "deep", "details"]
    entries = model.score([{"text": text} for text in texts], model.weights.content).entries
    good, *bad, detailed = entries
    assert (good, detailed) == ({"score": 3.0}, {"score": 7.0, "details": {"why": "asked"}})
    assert [each["error"]["code"] for each in bad] == [
        "function_failed",
        "function_failed",
        "no_score",
        "not_finite",
        "not_finite",
        "bad_details",
        "bad_details",
    ]
    assert "LookupError: as it was asked" in bad[0]["error"]["message"]
    assert not any("score" in each for each in bad)


@pytest.mark.parametrize("path", ["nowhere:function", "support.rewards:nothing", "support.rewards"])
def test_a_function_that_is_not_there_is_said_when_it_is_loaded(path: str) -> None:
    with pytest.raises((ImportError, AttributeError, ValueError)):
        load({"name": "own", "kind": "python", "directory": ".", "options": {"callable": path}})


def test_an_item_that_takes_for_ever_keeps_no_others_from_their_scores() -> None:
    own = PythonFunctionModel("support.rewards:length_later", item_timeout_s=0.05)
    never, good = own.score([{"text": "never"}, {"text": "abc"}], own.weights.content).entries
    assert (never["error"]["code"], good) == ("function_timeout", {"score": 3.0})
