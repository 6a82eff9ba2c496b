"""What a benchmark's command prints: one JSON document, or lines for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from arl_bench.harness.report import build_report
from arl_tangram.cli.output import print_json, stdout

__all__ = ["print_report"]


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
    """For people, `lines`, or each figure by its name."""
    if as_json:
        print_json(build_report(name, load=load, figures=figures, samples=samples, repeats=repeats))
        return
    for line in lines if lines is not None else (f"{each:30} {value:g}" for each, value in figures.items()):
        stdout.print(line, markup=False)
