"""Python functions as reward services; their results and errors belong to single items."""

import pytest

from arl_gpu.models.interface import RewardModel
from arl_gpu.models.loader import load
from arl_gpu.models.python_function import PythonFunctionModel


@pytest.fixture(params=["length", "length_later"])
def model(request: pytest.FixtureRequest) -> RewardModel:
    options = {"callable": f"support.rewards:{request.param}"}
    return load({"name": "own", "kind": "python", "directory": ".", "options": options})


def test_function_result_or_failure_belongs_to_its_item(model: RewardModel) -> None:
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
def test_missing_function_is_reported_when_loaded(path: str) -> None:
    with pytest.raises((ImportError, AttributeError, ValueError)):
        load({"name": "own", "kind": "python", "directory": ".", "options": {"callable": path}})


def test_endless_item_does_not_block_other_items() -> None:
    own = PythonFunctionModel("support.rewards:length_later", item_timeout_s=0.05)
    never, good = own.score([{"text": "never"}, {"text": "abc"}], own.weights.content).entries
    assert (never["error"]["code"], good) == ("function_timeout", {"score": 3.0})
