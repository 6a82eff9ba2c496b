"""Log-probabilities from a model's logits to the form that TRL's teacher client reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arl_gateway.compat import vllm_pairs
from arl_gateway.compat.openai import completions
from arl_wire.scores import Score

SEQUENCE = [5, 6, 7, 8, 9, 10]
PROMPT, TOP = 2, 3


def test_token_outside_top_logprobs_is_included_with_its_rank() -> None:
    entry = Score(
        score=-9.5,
        token_ids=[5, 6, 7],
        logprobs=[None, -0.5, -9.0],
        ranks=[None, 1, 40],
        top_token_ids=[[], [6, 1], [2, 3]],
        top_logprobs=[[], [-0.5, -1.5], [-0.1, -3.0]],
    )
    first, second, third = completions._choice(entry, 0)["prompt_logprobs"]
    assert first is None
    assert {token: each["rank"] for token, each in second.items()} == {"6": 1, "1": 2}
    assert {token: (each["logprob"], each["rank"]) for token, each in third.items()} == {
        "2": (-0.1, 1),
        "3": (-3.0, 2),
        "7": (-9.0, 40),
    }


def test_label_probabilities_are_over_all_tokens_or_labels_only() -> None:
    assert vllm_pairs._label_probabilities([-1.0, -1.0], apply_softmax=True) == [0.5, 0.5]
    assert vllm_pairs._label_probabilities([-2000.0, -2000.0], apply_softmax=True) == [0.5, 0.5]
    assert vllm_pairs._label_probabilities([0.0, -2000.0], apply_softmax=False) == [1.0, 0.0]


def test_trl_client_reads_the_models_log_probabilities(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    formatted: Callable[..., dict[str, Any]] = pytest.importorskip(
        "trl.generation.vllm_client"
    ).VLLMClient._format_sequence_logprobs
    from arl_gpu.models.loader import load  # torch comes with it

    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = load({"kind": "logprobs", "directory": str(tmp_path), "options": {}})
    [entry] = model.score([{"token_ids": SEQUENCE, "top_logprobs": TOP}], model.weights.content).entries
    said = formatted(completions._choice(Score.model_validate(entry), 0), SEQUENCE, PROMPT, TOP)
    module = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        rows = module(torch.tensor([SEQUENCE])).logits[0].float().log_softmax(-1)[PROMPT - 1 : -1]
    best = rows.topk(TOP, dim=-1)
    assert said["logprob_token_ids"] == best.indices.tolist()
    assert [each for row in said["logprobs"] for each in row] == pytest.approx(best.values.flatten().tolist(), abs=1e-5)
    actual = [rows[at][token].item() for at, token in enumerate(SEQUENCE[PROMPT:])]
    assert [each for (each,) in said["actual_logprobs"]] == pytest.approx(actual, abs=1e-5)
