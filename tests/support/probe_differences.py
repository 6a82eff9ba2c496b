"""Differences between a sandbox and a plain container that are intended, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DOCUMENTED", "DocumentedDifference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedDifference:
    """What a probe prints and returns in a sandbox instead, and why that is intended."""

    reason: str
    output: str
    exit_code: int = 0


DOCUMENTED: Mapping[str, DocumentedDifference] = {}
"""Intended differences of the driver `namespaces`, by the probe's name."""
