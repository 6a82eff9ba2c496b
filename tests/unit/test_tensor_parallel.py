"""Models that several devices compute together, by real workers: the scores are those of the whole model."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from arl_gpu.jobs import Report
from arl_gpu.kinds import load
from arl_gpu.kinds.model import Entry
from support.parallel import Node, a_node, wish

TOLERANCE = 1e-5
"""Absolute, of float32: sums over ranks add in another order."""
TOKENS = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16], [5, 6, 7, 8, 9], [20, 21, 22, 23]]
ITEMS = [{"token_ids": ids} for ids in TOKENS]
SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LARGE = {"hidden_size": 256, "intermediate_size": 1024}
"""8 MiB in two layers."""
KINDS = {"reward": "sequence-classifier", "teacher": "logprobs", "large": "logprobs", "bert": "sequence-classifier"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    llama, qwen = transformers.LlamaConfig, transformers.Qwen3Config
    biased = llama(**SIZE, attention_bias=True, mlp_bias=True, num_labels=1)
    saved(directory / "reward", transformers.LlamaForSequenceClassification(biased), seed=1)
    saved(directory / "teacher", transformers.Qwen3ForCausalLM(qwen(**SIZE, head_dim=8)), seed=2)
    saved(directory / "large", transformers.LlamaForCausalLM(llama(**SIZE | LARGE)), seed=3)
    bert = transformers.BertConfig(**SIZE | {"num_labels": 1})
    saved(directory / "bert", transformers.BertForSequenceClassification(bert), seed=4)
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(models: Path) -> AsyncIterator[Node]:
    """Two devices with room for half of the large model each, and for any of the small ones beside it."""
    async with a_node(models, 2, device_mib=6) as node:
        yield node


def saved(directory: Path, model: Any, *, seed: int) -> None:
    """With weights that are large enough to tell one mistake from another, biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    model.save_pretrained(directory)


def whole(models: Path, source: str, items: Sequence[dict[str, Any]] = ITEMS) -> list[Entry]:
    model = load({"kind": KINDS[source], "directory": str(models / source), "options": {}})
    return model.score(items, model.weights.content).entries


def entries(report: Report) -> list[Entry]:
    assert report.outcome == "ok", report
    found: list[Entry] = json.loads(report.scores or "")
    return found


def assert_alike(found: Sequence[Entry], wanted: Sequence[Entry]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=TOLERANCE)
        assert one.get("logprobs", [])[1:] == pytest.approx(other.get("logprobs", [])[1:], abs=TOLERANCE)


@pytest.mark.parametrize("source", ["reward", "teacher"])
async def test_scores_of_two_devices_together_are_those_of_the_whole_model(
    pair: Node, models: Path, source: str
) -> None:
    await pair.offer(wish("it", KINDS[source], source, tensor_parallel=2))
    assert_alike(entries(await pair.scored("it", ITEMS)), whole(models, source))
    assert pair.scoring.states["it"] == "resident"
    assert all(device.states["it"] == "resident" for device in pair.scoring._devices), "each has its part"


async def test_a_model_that_fits_on_no_device_is_scored_by_two(pair: Node, models: Path) -> None:
    await pair.offer(wish("alone", "logprobs", "large"), wish("it", "logprobs", "large", tensor_parallel=2))
    report = await pair.scored("alone", ITEMS)
    assert (report.outcome, report.reason) == ("infra_error", "no_room")
    assert_alike(entries(await pair.scored("it", ITEMS)), whole(models, "large"))
