"""Objects of a CPU node's manager that outlive the construction of its application."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI

from arl_kit.app import provided_deps

__all__ = ["CpuDeps", "cpu_deps"]


@dataclass(frozen=True, slots=True)
class CpuDeps:
    """The dependencies of the application."""

    drain: Callable[[], None]
    """Callable that ends the streams of live output, so that the server can stop."""


def cpu_deps(app: FastAPI) -> CpuDeps:
    """Return the dependencies of this application."""
    return provided_deps(app, CpuDeps)
