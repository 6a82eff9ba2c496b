"""A rank's part of a module that several devices compute together, by the plan of transformers.

For a matrix in the plan, a rank keeps its rows (`colwise`) or its columns (`rowwise`, whose outputs are summed over the
ranks). Every rank keeps all other tensors whole: embeddings, norms, heads, and matrices whose outputs the plan gathers.
The result is correct for any number of ranks, and costs each rank these bytes: a tenth of a small model with a large
vocabulary.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from arl_gpu.catalog.service_files import ModelNotShardable, sharding_obstacle

__all__ = ["plan_shards", "shard_module"]

UNSHARDED_STYLES = frozenset(
    {
        "colwise_gather_output",
        "colwise_rep",
        "embedding_rowwise",
        "replicated_with_grad_allreduce",
        "rowwise_rep",
        "rowwise_split_input",
    }
)
"""Styles of a plan for modules that can also be computed whole, from whole inputs to whole outputs."""
SHARDED_STYLES = ("colwise", "rowwise")
SUPPORTED_MODEL_TYPES = frozenset(
    {
        "cohere",
        "gemma2",
        "gemma3_text",
        "glm4",
        "gpt_neox",
        "granite",
        "llama",
        "mistral",
        "olmo2",
        "phi",
        "qwen2",
        "qwen3",
        "smollm3",
        "starcoder2",
    }
)
"""Values of `model_type` whose sharded results were compared with those of the whole model.

A plan can omit steps that change a score: Gemma 3n takes mean and deviation over a dimension that its plan shards.
"""


def shard_module(module: Any, *, rank: int, size: int, all_reduce: Callable[[Any], Any]) -> None:
    """Shard a module. `all_reduce` sums a tensor over all ranks. Raises `ModelNotShardable` before any change."""
    for part, style in plan_shards(module, size).values():
        if style == "colwise":
            _shard_rows(part, rank, size)
        else:
            _shard_columns(part, rank, size, all_reduce)


def plan_shards(module: Any, size: int) -> Mapping[str, tuple[Any, str]]:
    """Return the matrices to shard and their style, by name. Raises `ModelNotShardable`. Does not read weights."""
    kind, config = type(module).__name__, module.config.get_text_config().to_dict()
    if (why := sharding_obstacle(config, size)) is not None:
        raise ModelNotShardable(why)
    if config.get("model_type") not in SUPPORTED_MODEL_TYPES:
        raise ModelNotShardable(
            f"models of type {config.get('model_type')} cannot be sharded: register the service without tensor_parallel"
        )
    if config.get("use_qk_norm") or getattr(module.config, "quantization_config", None) is not None:
        raise ModelNotShardable(
            f"{kind} with use_qk_norm or quantised weights cannot be sharded: register the service without"
            " tensor_parallel"
        )
    found = dict(_planned_modules(module, kind, size))
    if not found:
        raise ModelNotShardable(
            f"transformers has no sharding plan for {kind}: register the service without tensor_parallel"
        )
    return found


def _planned_modules(module: Any, kind: str, size: int) -> Iterator[tuple[str, tuple[Any, str]]]:
    parts = dict(module.named_modules())
    names = parts.keys() | dict(module.named_parameters(remove_duplicate=False)).keys()
    plan = {pattern: style for pattern, style in (module.tp_plan or {}).items() if style not in UNSHARDED_STYLES}
    for pattern, style in plan.items():
        named = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        for name in sorted(filter(named.fullmatch, names)):
            # In other classes, such as packed or quantised weights, rows and columns can have another meaning.
            if style not in SHARDED_STYLES or type(parts.get(name)) is not nn.Linear:
                raise ModelNotShardable(
                    f"the sharding plan of {kind} has the style {style} for {name}, which is not supported: register"
                    " the service without tensor_parallel"
                )
            width = parts[name].out_features if style == "colwise" else parts[name].in_features
            if width % size:
                raise ModelNotShardable(f"{name} has the width {width}, which {size} devices cannot share equally")
            yield name, (parts[name], style)


def _shard_rows(part: Any, rank: int, size: int) -> None:
    part.out_features //= size
    rows = slice(rank * part.out_features, (rank + 1) * part.out_features)
    part.weight = _as_parameter(part.weight[rows])
    if part.bias is not None:
        part.bias = _as_parameter(part.bias[rows])


def _shard_columns(part: Any, rank: int, size: int, all_reduce: Callable[[Any], Any]) -> None:
    """Keep the rank's columns. Only rank 0 keeps the bias, so that the sum contains it once."""
    part.in_features //= size
    part.weight = _as_parameter(part.weight[:, rank * part.in_features : (rank + 1) * part.in_features])
    if rank:
        part.bias = None
    part.register_forward_hook(lambda _module, _given, output: all_reduce(output))


def _as_parameter(tensor: Any) -> Any:
    """Return a view of the whole tensor, which is freed once all parts are copied."""
    return nn.Parameter(tensor.detach(), requires_grad=False)
