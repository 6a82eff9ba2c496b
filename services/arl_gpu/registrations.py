"""What operators register, made into services of this node."""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_gpu.services import READERS, NotSplit, ServiceFiles, longest, undivided
from arl_wire.services import ServiceOptions

__all__ = ["NO_ENGINES", "BadRegistration", "NotHere", "Wish", "registered"]

NO_ENGINES: Mapping[str, int] = {}
TORCH = ("torch", "transformers", "safetensors")
NEEDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("similarity", "relevance", "classifier"), READERS),
    **dict.fromkeys(("sequence-classifier", "reranker", "logprobs"), TORCH),
}
"""Packages that compute each kind that can be registered."""


class BadRegistration(Exception):
    """What was registered, or its files, can't be understood."""


class NotHere(Exception):
    """This node lacks its files, or what computes it; another one may have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A row of `services`. One without a kind is about a service that comes along."""

    name: str
    kind: str | None
    source: str | None
    options: Mapping[str, Any]
    pinned: bool
    registered_at: float
    drained_at: float | None
    load_asked: float | None
    """Seconds since the epoch, by the database's clock."""

    @property
    def is_to_leave(self) -> bool:
        """Of a drain and a load the later one holds, and the other is over."""
        return self.drained_at is not None and (self.load_asked is None or self.load_asked <= self.drained_at)


def registered(
    wish: Wish, models: Path | None, engines: Mapping[str, int] = NO_ENGINES, *, devices: int = 1
) -> ServiceFiles:
    """What a registered service is made of on this node.

    `engines`: the numbers of their devices, by name. `devices`: how many may compute it together.
    Raises `NotHere` and `BadRegistration`.
    """
    try:
        return _judge(wish, engines) if wish.kind == "judge" else _registered(wish, models, devices)
    except NotSplit as error:
        raise BadRegistration(f"tensor_parallel: {error}") from error
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadRegistration(f"{type(error).__name__}: {error}") from error


def _judge(wish: Wish, engines: Mapping[str, int]) -> ServiceFiles:
    if wish.source is None or wish.source not in engines:
        raise NotHere(f"TANGRAM_ENGINES of this node names no engine {wish.source}")
    ServiceOptions.model_validate(wish.options)
    return ServiceFiles(
        name=wish.name,
        kind="judge",
        package=wish.source,
        directory=Path(),
        max_tokens=None,
        options=wish.options,
        registered_at=wish.registered_at,
        engine=wish.source,
        device=engines[wish.source],
    )


def _registered(wish: Wish, models: Path | None, devices: int) -> ServiceFiles:
    source = wish.source or ""
    directory = _directory(source, wish.kind, models)
    config = json.loads((directory / "config.json").read_text())
    files = ServiceFiles(
        name=wish.name,
        kind=wish.kind or "",
        package=source,
        directory=directory,
        max_tokens=int(wish.options.get("max_tokens") or longest(config)),
        options=wish.options,
        registered_at=wish.registered_at,
    )
    if files.parallel > 1:
        _must_split(files.parallel, config, devices)
    return files


def _directory(source: str, kind: str | None, models: Path | None) -> Path:
    """Raises `NotHere`."""
    if kind is None or kind not in NEEDS:
        raise NotHere(f"this node knows no kind {kind}")
    if models is None:
        raise NotHere("TANGRAM_MODELS of this node is not set: the directory that has the sources of services")
    directory = (models / source).resolve()
    if not directory.is_relative_to(models.resolve()) or not (directory / "config.json").is_file():
        raise NotHere(f"there is no {source}/config.json below TANGRAM_MODELS of this node")
    if missing := [each for each in NEEDS[kind] if importlib.util.find_spec(each) is None]:
        raise NotHere(f"this node's Python has no {', '.join(missing)}: pip install 'arl-tangram[torch]'")
    return directory


def _must_split(parts: int, config: Mapping[str, Any], devices: int) -> None:
    """Raises `NotSplit`. What its library has to say of it, the worker of the first rank asks."""
    if parts > devices:
        raise NotSplit(f"it needs {parts} devices, and {devices} of this node can compute together: TANGRAM_DEVICES")
    if (why := undivided(config, parts)) is not None:
        raise NotSplit(why)
