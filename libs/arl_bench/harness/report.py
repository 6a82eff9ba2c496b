"""The document that every benchmark prints, or lines for people."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from arl_tangram.cli.output import print_json, stdout

__all__ = ["build_report", "print_report"]

REPORTED_PACKAGES = (
    "arl-tangram",
    "httpx",
    "pydantic",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "asyncpg",
    "numpy",
    "torch",
    "transformers",
)
NVIDIA_DIRECTORY = Path("/proc/driver/nvidia")


def build_report(
    name: str, *, load: Mapping[str, Any], figures: Mapping[str, float], samples: Mapping[str, Any], repeats: int = 1
) -> dict[str, Any]:
    """Build the document. `figures` is flat, name to number; `samples` are the measured values behind them."""
    return {
        "name": name,
        "machine": _machine(),
        "load": dict(load),
        "versions": _versions(),
        "repeats": repeats,
        "figures": dict(figures),
        "samples": dict(samples),
    }


def _machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": _gpus(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "python": platform.python_version(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "user": "root" if os.geteuid() == 0 else "ordinary",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _gpus() -> list[str]:
    """Return the GPU models that the driver reports, or none without a driver."""
    found = []
    for said in sorted(NVIDIA_DIRECTORY.glob("gpus/*/information")):
        lines = dict(line.split(":", 1) for line in said.read_text().splitlines() if ":" in line)
        found.append(lines.get("Model", "unknown").strip())
    return found


def _versions() -> dict[str, str]:
    found = {}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def print_report(
    name: str,
    *,
    as_json: bool,
    load: Mapping[str, Any],
    figures: Mapping[str, float],
    samples: Mapping[str, Any],
    repeats: int = 1,
    lines: Sequence[str] | None = None,
) -> None:
    """Print the JSON document, or `lines`, or each figure with its name."""
    if as_json:
        print_json(build_report(name, load=load, figures=figures, samples=samples, repeats=repeats))
        return
    for line in lines if lines is not None else (f"{each:30} {value:g}" for each, value in figures.items()):
        stdout.print(line, markup=False)
