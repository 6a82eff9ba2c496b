"""Kinds of reward services: what makes a model of a service's specification."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arl_gpu.kinds.model import Model

__all__ = ["load"]


def load(spec: Mapping[str, Any]) -> Model:
    """Reads its weights into host memory. Raises `LookupError` for a kind that there is not."""
    if spec["kind"] == "similarity":
        from arl_gpu.encoders.similarity import Similarity  # numpy and tokenizers come with it

        return Similarity(Path(spec["directory"]))
    raise LookupError(f"there is no kind {spec['kind']!r} of reward service")
