"""Tiny random models in the layout of Hugging Face, with weights that reveal mistakes."""

from pathlib import Path
from typing import Any

import torch
import transformers

__all__ = ["SIZE", "a_large_one", "save"]

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


def a_large_one() -> Any:
    """Return a model of 8 MiB in two layers, with its own configuration because saving changes it."""
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZE | {"hidden_size": 256, "intermediate_size": 1024})
    )


def save(directory: Path, model: Any, *, seed: int) -> None:
    """Save the model with random weights, including biases."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[-1] ** 0.5)
    model.save_pretrained(directory)
