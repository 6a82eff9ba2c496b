"""Kinds of reward services: what makes a model of a service's specification."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arl_gpu.kinds.model import Model

__all__ = ["load"]


def load(spec: Mapping[str, Any]) -> Model:
    """Reads its weights into host memory. Raises `LookupError` for a kind that there is not.

    `directory` is where its files are, `options` is what its kind takes beside them.
    """
    make = MAKERS.get(spec["kind"])
    if make is None:
        raise LookupError(f"there is no kind {spec['kind']!r} of reward service")
    return make(Path(spec["directory"]), spec.get("options", {}))


# Each imports what it computes with: numpy and tokenizers, or torch. A node that has no such service pays nothing.


def _similarity(directory: Path, options: Mapping[str, Any]) -> Model:
    from arl_gpu.encoders.similarity import Similarity

    return Similarity(directory)


def _classifier(directory: Path, options: Mapping[str, Any]) -> Model:
    from arl_gpu.encoders.classifier import Classifier

    return Classifier(directory, Path(options["head"]), activation=options.get("activation", True))


MAKERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Model]] = {
    "similarity": _similarity,
    "relevance": _similarity,
    "classifier": _classifier,
}
