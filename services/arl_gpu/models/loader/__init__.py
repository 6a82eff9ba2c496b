"""Factories for the kinds of reward services: each creates a model from a service's specification."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arl_gpu.models.interface import RewardModel
from arl_gpu.models.weight_buffer import AllocateFn, load_private

__all__ = ["check_shardable", "create_model", "load"]


def load(spec: Mapping[str, Any], allocate_fn: AllocateFn = load_private) -> RewardModel:
    """Create a model and load its weights into host memory. Raises the errors of `create_model`."""
    model = create_model(spec)
    model.weights.allocate(allocate_fn)
    return model


def create_model(spec: Mapping[str, Any]) -> RewardModel:
    """Create a model without loading its weights. Raises `LookupError` for an unknown kind.

    `directory` contains its files; `options` are the options of its kind.
    """
    maker = MODEL_FACTORIES.get(spec["kind"])
    if maker is None:
        raise LookupError(f"the kind {spec['kind']!r} of reward service does not exist")
    return maker(Path(spec["directory"]), spec.get("options", {}))


def check_shardable(spec: Mapping[str, Any]) -> None:
    """Raise `ModelNotShardable` if the service's devices cannot compute it together."""
    from arl_gpu.models.hugging_face import check_tensor_parallel

    check_tensor_parallel(spec)


# Each factory imports its libraries (numpy and tokenizers, or torch), so a node without such services never does.


def _similarity(directory: Path, options: Mapping[str, Any]) -> RewardModel:
    from arl_gpu.models.encoders.sentence_encoder import SimilarityModel

    return SimilarityModel(directory)


def _classifier(directory: Path, options: Mapping[str, Any]) -> RewardModel:
    from arl_gpu.models.encoders.encoder_classifier import EncoderClassifier

    head = Path(options.get("head") or directory / "head.safetensors")
    return EncoderClassifier(directory, head, activation=options.get("activation") is not False)


def _sequence_classifier(directory: Path, options: Mapping[str, Any]) -> RewardModel:
    from arl_gpu.models.hugging_face import SequenceClassifier

    return SequenceClassifier(directory, options)


def _logprobs(directory: Path, options: Mapping[str, Any]) -> RewardModel:
    from arl_gpu.models.hugging_face import LogprobsModel

    return LogprobsModel(directory, options)


def _python_function(directory: Path, options: Mapping[str, Any]) -> RewardModel:
    from arl_gpu.models.python_function import PythonFunctionModel

    return PythonFunctionModel(options["callable"])


MODEL_FACTORIES: Mapping[str, Callable[[Path, Mapping[str, Any]], RewardModel]] = {
    "similarity": _similarity,
    "relevance": _similarity,
    "classifier": _classifier,
    "sequence-classifier": _sequence_classifier,
    "reranker": _sequence_classifier,
    "logprobs": _logprobs,
    "python": _python_function,
}
