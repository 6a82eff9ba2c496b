"""Kinds of reward services: what makes a model of a service's specification."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arl_gpu.kept import Hold, own
from arl_gpu.kinds.model import Model

__all__ = ["check_split", "load", "make"]


def load(spec: Mapping[str, Any], hold: Hold = own) -> Model:
    """With its weights in host memory, where `hold` says. Raises what `make` raises."""
    model = make(spec)
    model.weights.keep(hold)
    return model


def make(spec: Mapping[str, Any]) -> Model:
    """Its weights are kept nowhere yet. Raises `LookupError` for a kind that there is not.

    `directory` is where its files are, `options` is what its kind takes beside them.
    """
    maker = MAKERS.get(spec["kind"])
    if maker is None:
        raise LookupError(f"there is no kind {spec['kind']!r} of reward service")
    return maker(Path(spec["directory"]), spec.get("options", {}))


def check_split(spec: Mapping[str, Any]) -> None:
    """Raises `arl_gpu.services.NotSplit` where the devices that are to compute it together can't."""
    from arl_gpu.kinds.hugging_face import check

    check(spec)


# Each imports what it computes with: numpy and tokenizers, or torch. A node that has no such service pays nothing.


def _similarity(directory: Path, options: Mapping[str, Any]) -> Model:
    from arl_gpu.encoders.similarity import Similarity

    return Similarity(directory)


def _classifier(directory: Path, options: Mapping[str, Any]) -> Model:
    from arl_gpu.encoders.classifier import Classifier

    head = Path(options.get("head") or directory / "head.safetensors")
    return Classifier(directory, head, activation=options.get("activation") is not False)


def _sequence_classifier(directory: Path, options: Mapping[str, Any]) -> Model:
    from arl_gpu.kinds.hugging_face import Classifier

    return Classifier(directory, options)


def _logprobs(directory: Path, options: Mapping[str, Any]) -> Model:
    from arl_gpu.kinds.hugging_face import LogProbs

    return LogProbs(directory, options)


def _own(directory: Path, options: Mapping[str, Any]) -> Model:
    from arl_gpu.kinds.callable import Own

    return Own(options["callable"])


MAKERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Model]] = {
    "similarity": _similarity,
    "relevance": _similarity,
    "classifier": _classifier,
    "sequence-classifier": _sequence_classifier,
    "reranker": _sequence_classifier,
    "logprobs": _logprobs,
    "python": _own,
}
