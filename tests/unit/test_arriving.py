"""Forwards of torch that begin before all of their weights are there: whatever a module reads is waited for."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from arl_gpu.device import CopyFailed
from arl_gpu.kinds.arriving import EARLY
from arl_gpu.kinds.flat import FlatModule
from support.coming import Coming

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = SIZE | {"num_key_value_heads": 2, "head_dim": 8}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, "pad_token_id": 0}
GIVEN = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
}


def a_causal(name: str, sizes: dict[str, Any] = GROUPED, **more: Any) -> Callable[[], Any]:
    config, model = getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM")
    return lambda: model(config(**sizes, **more))


def a_classifier(name: str, sizes: dict[str, Any] = SIZE, **more: Any) -> Callable[[], Any]:
    config, model = getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForSequenceClassification")
    return lambda: model(config(**sizes, num_labels=2, **more))


MODULES: dict[str, Callable[[], Any]] = {
    "llama": a_causal("Llama"),
    "llama, tied": a_causal("Llama", tie_word_embeddings=True),
    "llama, a reward": a_classifier("Llama", GROUPED),
    "qwen2": a_causal("Qwen2"),
    "qwen3": a_causal("Qwen3"),
    "mistral": a_causal("Mistral"),
    "gemma2": a_causal("Gemma2"),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**GROUPED)),
    "phi": a_causal("Phi", SIZE),
    "gpt_neox": a_causal("GPTNeoX", SIZE),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
    "bert": a_classifier("Bert"),
    "roberta": a_classifier("Roberta"),
    "xlm-roberta": a_classifier("XLMRoberta"),
    "deberta": a_classifier(
        "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm"
    ),
    "modernbert": a_classifier("ModernBert", SIZE, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_forward_reads_nothing_that_is_not_there_and_finds_the_same(name: str) -> None:
    module = flat_of(name)
    coming = Coming(module.content)
    found = module(coming.content, coming, **GIVEN).logits
    assert torch.isfinite(found[:, 0]).all()
    assert torch.equal(found, module(module.content, **GIVEN).logits)
    assert coming.waits[1] < 0.5 * module.size
    assert len(coming.waits) > 5, "layer after layer"


def test_what_begins_early_is_what_was_seen_here() -> None:
    assert {make().config.model_type for make in MODULES.values()} == EARLY


def test_a_copy_that_breaks_off_ends_the_forward_that_waits_for_it() -> None:
    module = flat_of("llama")

    class BreaksOff(Coming):
        def __call__(self, upto: int) -> None:
            if upto > module.size // 2:
                raise CopyFailed("it broke off")
            super().__call__(upto)

    coming = BreaksOff(module.content)
    with pytest.raises(CopyFailed):
        module(coming.content, coming, **GIVEN)


def test_operations_are_not_looked_at_once_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arl_gpu.kinds.flat.Arriving", None)
    module = flat_of("bert")
    coming = Coming(module.content)
    coming(module.size)
    module(coming.content, coming, **GIVEN)


def flat_of(name: str) -> FlatModule:
    torch.manual_seed(0)
    return FlatModule(MODULES[name]())
