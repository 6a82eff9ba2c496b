"""Limits of positions in models of transformers: the longest text, and the longest one whose positions are fixed."""

import re
import sys
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["max_positions", "reset_rope_lengths", "rope_limit"]

POSITION_TABLE_NAME = re.compile(r"(^|\.)(position_embeddings?|embed_positions|wpe)$")
"""Names of tables of learnt position embeddings."""

FIXED_TABLE_MODELS = frozenset({"codegen", "ctrl", "gptj"})
"""Model types whose position tables are computed once and have a fixed size."""

LENGTH_DEPENDENT_TYPES = frozenset({"dynamic", "longrope"})
"""Types of rotary positions whose frequencies depend on the longest text of a pass."""

LENGTH_ATTRIBUTE = "max_seq_len_cached"
"""End of the attribute names that store the longest text of earlier passes."""


def max_positions(module: Any) -> int:
    """Return the maximum number of tokens by the model's position tables; computed positions have no limit."""
    learnt: list[int] = [
        part.num_embeddings
        - int(getattr(part, "offset", 0))
        - (0 if part.padding_idx is None else 1 + part.padding_idx)
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.Embedding) and POSITION_TABLE_NAME.search(name)
    ]
    if not learnt and module.config.model_type not in FIXED_TABLE_MODELS:
        return sys.maxsize
    # Some tables are longer than the maximum input of the model.
    return min([*learnt, int(module.config.max_position_embeddings)])


def rope_limit(config: Any) -> int:
    """Return the maximum length of texts whose rotary positions do not depend on the longest text of their pass."""
    found: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [found] if "rope_type" in found else [each for each in found.values() if isinstance(each, Mapping)]
    limits = (
        min(int(each.get("original_max_position_embeddings") or sys.maxsize), int(config.max_position_embeddings))
        for each in by_layer_type
        if each.get("rope_type") in LENGTH_DEPENDENT_TYPES
    )
    return min(limits, default=sys.maxsize)


def reset_rope_lengths(module: Any) -> None:
    """Make rotary positions independent of earlier passes: the library scales `dynamic` ones only for a longer text."""
    for part in module.modules():
        for name in [name for name in vars(part) if name.endswith(LENGTH_ATTRIBUTE)]:
            setattr(part, name, part.original_max_seq_len)
