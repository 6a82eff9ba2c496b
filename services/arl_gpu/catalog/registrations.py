"""Resolution of registered reward services to the model files and engines of this node."""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_gpu.catalog.service_files import (
    READER_PACKAGES,
    ModelNotShardable,
    ServiceFiles,
    max_item_tokens,
    sharding_obstacle,
)
from arl_wire.reward_services.service import ServiceOptions

__all__ = ["NO_ENGINES", "DesiredService", "InvalidRegistration", "UnsupportedOnNode", "resolve_service"]

NO_ENGINES: Mapping[str, int] = {}
TORCH_PACKAGES = ("torch", "transformers", "safetensors")
REQUIRED_PACKAGES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("similarity", "relevance", "classifier"), READER_PACKAGES),
    **dict.fromkeys(("sequence-classifier", "reranker", "logprobs"), TORCH_PACKAGES),
}
"""Python packages that each registrable kind needs."""


class InvalidRegistration(Exception):
    """An invalid registration, or an invalid file of its model."""


class UnsupportedOnNode(Exception):
    """A service whose files or packages this node lacks; another node may have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredService:
    """A row of `services`. If `kind` is None, the row configures a built-in service."""

    name: str
    kind: str | None
    source: str | None
    options: Mapping[str, Any]
    pinned: bool
    registered_at: float
    drained_at: float | None
    load_asked: float | None
    """Time of the last load request, in seconds since the epoch by the database's clock."""

    @property
    def is_eviction_desired(self) -> bool:
        """Return True if the drain is at least as recent as the load request; the later request wins."""
        return self.drained_at is not None and (self.load_asked is None or self.load_asked <= self.drained_at)


def resolve_service(
    desired: DesiredService, models: Path | None, engines: Mapping[str, int] = NO_ENGINES, *, devices: int = 1
) -> ServiceFiles:
    """Resolve a registered service to the model files or the engine of this node.

    Args:
        desired: The registration.
        models: The directory that contains the sources of registered services.
        engines: The device number of each engine, by engine name.
        devices: The maximum number of devices that can compute the service together.

    Raises:
        UnsupportedOnNode: This node lacks the files, the packages or the engine.
        InvalidRegistration: The registration or its files are invalid.
    """
    try:
        return _resolve_judge(desired, engines) if desired.kind == "judge" else _resolve_model(desired, models, devices)
    except ModelNotShardable as error:
        raise InvalidRegistration(f"tensor_parallel: {error}") from error
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidRegistration(f"{type(error).__name__}: {error}") from error


def _resolve_judge(desired: DesiredService, engines: Mapping[str, int]) -> ServiceFiles:
    if desired.source is None or desired.source not in engines:
        raise UnsupportedOnNode(f"TANGRAM_ENGINES of this node has no engine {desired.source!r}")
    ServiceOptions.model_validate(desired.options)
    return ServiceFiles(
        name=desired.name,
        kind="judge",
        package=desired.source,
        directory=Path(),
        max_tokens=None,
        options=desired.options,
        registered_at=desired.registered_at,
        engine=desired.source,
        device=engines[desired.source],
    )


def _resolve_model(desired: DesiredService, models: Path | None, devices: int) -> ServiceFiles:
    source = desired.source or ""
    directory = _find_directory(source, desired.kind, models)
    config = json.loads((directory / "config.json").read_text())
    files = ServiceFiles(
        name=desired.name,
        kind=desired.kind or "",
        package=source,
        directory=directory,
        max_tokens=int(desired.options.get("max_tokens") or max_item_tokens(config)),
        options=desired.options,
        registered_at=desired.registered_at,
    )
    if files.parallelism > 1:
        _check_shardable(files.parallelism, config, devices)
    return files


def _find_directory(source: str, kind: str | None, models: Path | None) -> Path:
    """Find the model's directory below `models`. Raises `UnsupportedOnNode`."""
    if kind is None or kind not in REQUIRED_PACKAGES:
        raise UnsupportedOnNode(f"this node does not support the kind {kind!r}")
    if models is None:
        raise UnsupportedOnNode(
            "TANGRAM_MODELS of this node is not set; it must be the directory of the services' models"
        )
    directory = (models / source).resolve()
    if not directory.is_relative_to(models.resolve()) or not (directory / "config.json").is_file():
        raise UnsupportedOnNode(f"{source}/config.json does not exist below TANGRAM_MODELS of this node")
    if missing := [each for each in REQUIRED_PACKAGES[kind] if importlib.util.find_spec(each) is None]:
        raise UnsupportedOnNode(
            f"the Python of this node lacks {', '.join(missing)}: pip install 'arl-tangram-server[torch]'"
        )
    return directory


def _check_shardable(parts: int, config: Mapping[str, Any], devices: int) -> None:
    """Raise `ModelNotShardable` if `config.json` rules out `parts` devices.

    The worker of the first rank also checks the plan of transformers.
    """
    if parts > devices:
        raise ModelNotShardable(
            f"the service needs {parts} devices, but only {devices} of this node can compute together (TANGRAM_DEVICES)"
        )
    if (why := sharding_obstacle(config, parts)) is not None:
        raise ModelNotShardable(why)
