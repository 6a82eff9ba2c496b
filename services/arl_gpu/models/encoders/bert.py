"""BERT's forward in NumPy, or in torch if it can be imported: from token ids to one unit vector for each text."""

import importlib
import importlib.util
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arl_gpu.devices.interface import wait_for_gpu
from arl_gpu.models.encoders.flat_weights import Array

__all__ = ["BertConfig", "EncodeFunction", "encode_numpy", "encode_torch", "has_torch", "read_config"]

log = logging.getLogger(__name__)

EncodeFunction = Callable[[Mapping[str, Array], Sequence[Sequence[int]], "BertConfig"], Array]

# Abramowitz and Stegun 7.1.26: the error function with an error of at most 1.5e-7, far below float32 rounding of sums.
ERF_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
ERF_P = 0.3275911
MASK_BIAS = np.float32(-1e9)
MIN_POOL_WEIGHT = np.float32(1e-9)


@dataclass(frozen=True, slots=True)
class BertConfig:
    """The dimensions of a BERT encoder."""

    layers: int
    heads: int
    epsilon: float


def read_config(directory: Path) -> BertConfig:
    """Read the configuration. Raises `ValueError` for a model that this forward does not implement."""
    said = json.loads((directory / "config.json").read_text())
    pooling = json.loads((directory / "1_Pooling" / "config.json").read_text())
    modules = [each["type"].rpartition(".")[2] for each in json.loads((directory / "modules.json").read_text())]
    modes = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on]
    found = (said["model_type"], said["hidden_act"], modules, modes)
    if found != ("bert", "gelu", ["Transformer", "Pooling", "Normalize"], ["pooling_mode_mean_tokens"]):
        raise ValueError(f"the model is not a BERT with GELU, mean pooling and normalisation: {found}")
    return BertConfig(said["num_hidden_layers"], said["num_attention_heads"], said["layer_norm_eps"])


def has_torch() -> bool:
    """Return True if torch can be imported. The import is tried, because a broken torch must not fail each forward."""
    if importlib.util.find_spec("torch") is None:
        return False
    try:
        importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001 - native libraries can raise any exception
        log.warning("torch is installed but cannot be imported, so NumPy is used: %r", error)
        return False
    return True


def encode_numpy(weights: Mapping[str, Array], ids: Sequence[Sequence[int]], config: BertConfig) -> Array:
    """Return one unit vector for each text. The texts of a call are padded to the longest one."""
    padded, mask = _pad(ids)
    hidden = (
        weights["embeddings.word_embeddings.weight"][padded]
        + weights["embeddings.position_embeddings.weight"][: padded.shape[1]]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    hidden = _layer_norm(hidden, weights, "embeddings.LayerNorm", config)
    bias = None if mask.all() else np.where(mask, np.float32(0), MASK_BIAS)[:, None, None, :]
    for number in range(config.layers):
        hidden = _layer(hidden, bias, weights, f"encoder.layer.{number}", config)
    weight = mask.astype(np.float32)[:, :, None]
    pooled = (hidden * weight).sum(axis=1) / np.maximum(weight.sum(axis=1), MIN_POOL_WEIGHT)
    vectors: Array = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return vectors


def encode_torch(weights: Mapping[str, Array], ids: Sequence[Sequence[int]], config: BertConfig) -> Array:
    """Return the vectors of `encode_numpy`, computed in torch on the device of the weights."""
    import torch  # imported only if needed; it takes a second and 200 MiB
    from torch.nn import functional

    def tensor(name: str) -> Any:
        """Return the weight as a tensor."""
        array = weights[name]
        return array if isinstance(array, torch.Tensor) else torch.from_numpy(array)

    words = tensor("embeddings.word_embeddings.weight")
    padded, mask = (torch.from_numpy(each).to(words.device) for each in _pad(ids))

    def linear(x: Any, name: str) -> Any:
        """Apply a linear layer."""
        return functional.linear(x, tensor(f"{name}.weight"), tensor(f"{name}.bias"))

    def norm(x: Any, name: str) -> Any:
        """Apply a layer normalisation."""
        weight, bias = tensor(f"{name}.weight"), tensor(f"{name}.bias")
        return functional.layer_norm(x, x.shape[-1:], weight, bias, config.epsilon)

    def heads(x: Any) -> Any:
        """Split the last dimension into attention heads."""
        return x.unflatten(-1, (config.heads, -1)).transpose(1, 2)

    with torch.inference_mode():
        attend = None if mask.all() else mask[:, None, None, :]
        x = functional.embedding(padded, words)
        x = x + tensor("embeddings.position_embeddings.weight")[: padded.shape[1]]
        x = norm(x + tensor("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for layer in (f"encoder.layer.{number}" for number in range(config.layers)):
            parts = [heads(linear(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value")]
            seen = functional.scaled_dot_product_attention(*parts, attn_mask=attend).transpose(1, 2).flatten(2)
            x = norm(x + linear(seen, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
            wide = functional.gelu(linear(x, f"{layer}.intermediate.dense"))
            x = norm(x + linear(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        weight = mask[:, :, None].to(x.dtype)
        pooled = (x * weight).sum(1) / weight.sum(1).clamp(min=float(MIN_POOL_WEIGHT))
        vectors = functional.normalize(pooled, dim=1)
        if vectors.is_cuda:
            wait_for_gpu()
        found: Array = vectors.cpu().numpy()
    return found


def _pad(ids: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    longest = max(map(len, ids))
    padded = np.zeros((len(ids), longest), np.int64)
    mask = np.zeros((len(ids), longest), bool)
    for row, each in enumerate(ids):
        padded[row, : len(each)] = each
        mask[row, : len(each)] = True
    return padded, mask


def _layer(x: Any, bias: Any, weights: Mapping[str, Array], name: str, config: BertConfig) -> Any:
    seen = _attention(x, bias, weights, f"{name}.attention.self", config)
    seen = _linear(seen, weights, f"{name}.attention.output.dense")
    x = _layer_norm(x + seen, weights, f"{name}.attention.output.LayerNorm", config)
    wide = _gelu(_linear(x, weights, f"{name}.intermediate.dense"))
    return _layer_norm(x + _linear(wide, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm", config)


def _attention(x: Any, bias: Any, weights: Mapping[str, Array], name: str, config: BertConfig) -> Any:
    texts, length, width = x.shape

    def heads(part: str) -> Any:
        """Return a linear projection, split into attention heads."""
        return _linear(x, weights, f"{name}.{part}").reshape(texts, length, config.heads, -1).transpose(0, 2, 1, 3)

    scores = heads("query") @ heads("key").transpose(0, 1, 3, 2)
    scores *= np.float32((width // config.heads) ** -0.5)
    if bias is not None:
        scores += bias
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return (scores @ heads("value")).transpose(0, 2, 1, 3).reshape(texts, length, width)


def _linear(x: Any, weights: Mapping[str, Array], name: str) -> Any:
    weight = weights[f"{name}.weight"]
    flat = x.reshape(-1, weight.shape[1]) @ weight.T
    flat += weights[f"{name}.bias"]
    return flat.reshape(*x.shape[:-1], weight.shape[0])


def _layer_norm(x: Any, weights: Mapping[str, Array], name: str, config: BertConfig) -> Any:
    x = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1]) + np.float32(config.epsilon))
    x /= scale
    x *= weights[f"{name}.weight"]
    x += weights[f"{name}.bias"]
    return x


def _gelu(x: Any) -> Any:
    """Return x/2 (1 + erf(x / √2)), computed in place where possible."""
    y = np.abs(x)
    y *= np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(ERF_P) * y)
    series = np.full_like(t, np.float32(ERF_COEFFICIENTS[4]))
    for factor in reversed(ERF_COEFFICIENTS[:4]):
        series *= t
        series += np.float32(factor)
    series *= t
    np.multiply(y, y, out=y)
    np.negative(y, out=y)
    series *= np.exp(y, out=y)
    # erf(|x|/√2) = 1 - series, and erf is odd.
    series *= -1
    series += 1
    np.copysign(series, x, out=series)
    series += 1
    series *= x
    series *= np.float32(0.5)
    return series
