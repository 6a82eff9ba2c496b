"""Differences between a sandbox and a plain container that are intended, each with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass

from support.probe import Probe

__all__ = ["DOCUMENTED", "DocumentedDifference", "documented_difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedDifference:
    """What a probe prints and returns in a sandbox instead, and why that is intended."""

    name: str
    reason: str
    output: str
    exit_code: int = 0
    drivers: tuple[str, ...] = ("namespaces",)
    templates: tuple[str, ...] = ("host", "image")


DOCUMENTED: Sequence[DocumentedDifference] = ()


def documented_difference(probe: Probe, template: str | None, driver: str) -> DocumentedDifference | None:
    """Return the intended difference of the probe under this driver, if any."""
    for each in DOCUMENTED:
        if each.name == probe.name and driver in each.drivers and template in each.templates:
            return each
    return None
