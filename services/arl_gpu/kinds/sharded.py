"""One rank's part of a module that several devices compute together, as transformers' own plan for it says.

Of a matrix that the plan names, a rank keeps its rows (`colwise`) or its columns (`rowwise`, whose outputs are summed
over the ranks). All else is whole on each rank: embeddings, norms, heads, and matrices whose outputs the plan gathers.
That is right in any number of ranks, and costs each its bytes: of a large vocabulary a tenth of a small model.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from arl_gpu.services import NotSplit, undivided

__all__ = ["planned", "split"]

WHOLE = frozenset(
    {
        "colwise_gather_output",
        "colwise_rep",
        "embedding_rowwise",
        "replicated_with_grad_allreduce",
        "rowwise_rep",
        "rowwise_split_input",
    }
)
"""What a plan says of modules that are as well computed whole, from whole inputs to whole outputs."""
SPLIT = ("colwise", "rowwise")
TRIED = frozenset(
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
"""`model_type`s of which parts were compared with the whole. What a plan does not say may make a score wrong: Gemma 3n
takes mean and deviation over a width that its plan splits."""


def split(module: Any, *, rank: int, size: int, add: Callable[[Any], Any]) -> None:
    """`add`: the sum of a tensor over all ranks. Raises `NotSplit`, before anything of it was changed."""
    for part, style in planned(module, size).values():
        if style == "colwise":
            _keep_rows(part, rank, size)
        else:
            _keep_columns(part, rank, size, add)


def planned(module: Any, size: int) -> Mapping[str, tuple[Any, str]]:
    """The matrices that are split, by their names, and how. Raises `NotSplit`; weights are not looked at."""
    kind, config = type(module).__name__, module.config.get_text_config().to_dict()
    if (why := undivided(config, size)) is not None:
        raise NotSplit(why)
    if config.get("model_type") not in TRIED:
        raise NotSplit(f"models of type {config.get('model_type')} are not split: register it without tensor_parallel")
    if config.get("use_qk_norm") or getattr(module.config, "quantization_config", None) is not None:
        raise NotSplit(
            f"{kind} with use_qk_norm or quantised weights is not split: register it without tensor_parallel"
        )
    found = dict(_named(module, kind, size))
    if not found:
        raise NotSplit(f"transformers has no plan for splitting {kind}: register it without tensor_parallel")
    return found


def _named(module: Any, kind: str, size: int) -> Iterator[tuple[str, tuple[Any, str]]]:
    parts = dict(module.named_modules())
    names = parts.keys() | dict(module.named_parameters(remove_duplicate=False)).keys()
    plan = {pattern: style for pattern, style in (module.tp_plan or {}).items() if style not in WHOLE}
    for pattern, style in plan.items():
        named = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        for name in sorted(filter(named.fullmatch, names)):
            # Of other classes, as of packed or quantised weights, rows and columns may mean something else.
            if style not in SPLIT or type(parts.get(name)) is not nn.Linear:
                raise NotSplit(
                    f"{kind} has {name}, which its plan splits as {style}; that is not known here: register it without"
                    " tensor_parallel"
                )
            width = parts[name].out_features if style == "colwise" else parts[name].in_features
            if width % size:
                raise NotSplit(f"{name} is {width} wide, which {size} devices can't share equally")
            yield name, (parts[name], style)


def _keep_rows(part: Any, rank: int, size: int) -> None:
    part.out_features //= size
    rows = slice(rank * part.out_features, (rank + 1) * part.out_features)
    part.weight = _part(part.weight[rows])
    if part.bias is not None:
        part.bias = _part(part.bias[rows])


def _keep_columns(part: Any, rank: int, size: int, add: Callable[[Any], Any]) -> None:
    """The bias is of one rank, for it is in the sum once."""
    part.in_features //= size
    part.weight = _part(part.weight[:, rank * part.in_features : (rank + 1) * part.in_features])
    if rank:
        part.bias = None
    part.register_forward_hook(lambda _module, _given, output: add(output))


def _part(piece: Any) -> Any:
    """Still in the whole, which is let go once all parts are kept elsewhere."""
    return nn.Parameter(piece.detach(), requires_grad=False)
