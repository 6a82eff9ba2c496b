"""Plots of simulations: completion times, cores in use, and their trajectories."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

from arl_sim.results import SimResult
from arl_sim.workload import ResourceKind

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

__all__ = ["draw_simulation"]

SAMPLE_COUNT = 600
"""Number of sampled moments of the core usage."""
COLOURS = {ResourceKind.CPU: "tab:blue", ResourceKind.GPU: "tab:orange", ResourceKind.API: "tab:green"}


def draw_simulation(results: Mapping[str, SimResult], stem: Path) -> list[Path]:
    """Write `stem`.svg and `stem`.png: completion times and cores in use of all results, then a chart of each."""
    figure, rows = pyplot.subplots(
        2 + len(results), 1, figsize=(12, 6.0 + 3.0 * len(results)), squeeze=False, layout="constrained"
    )
    completion, use, *charts = rows[:, 0]
    longest = max(result.end_s for result in results.values())
    for name, result in results.items():
        _draw_completion(completion, name, result)
        _draw_usage(use, name, result, longest)
    for chart, (name, result) in zip(charts, results.items(), strict=True):
        _draw_chart(chart, name, result, longest)
    completion.legend()
    use.legend()
    paths = [stem.with_suffix(suffix) for suffix in (".svg", ".png")]
    for path in paths:
        figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return paths


def _draw_completion(axes: Axes, name: str, result: SimResult) -> None:
    acts = sorted(record.act_s for record in result.records)
    axes.plot(acts, [(place + 1) / len(acts) for place in range(len(acts))], label=name)
    axes.set_xscale("log")
    axes.set_xlabel("action completion time, seconds")
    axes.set_ylabel("part of the actions")


def _draw_usage(axes: Axes, name: str, result: SimResult, longest: float) -> None:
    edges = [(piece.start, piece.units) for piece in result.segments if piece.resource_kind is ResourceKind.CPU]
    edges += [(piece.end, -piece.units) for piece in result.segments if piece.resource_kind is ResourceKind.CPU]
    edges.sort()
    moments = [longest * place / SAMPLE_COUNT for place in range(SAMPLE_COUNT + 1)]
    used, at, seen = 0.0, 0, []
    for moment in moments:
        while at < len(edges) and edges[at][0] <= moment:
            used += edges[at][1]
            at += 1
        seen.append(used)
    axes.step(moments, seen, where="post", label=name)
    axes.set_xlim(0, longest)
    axes.set_ylabel(f"cores in use, of {result.cluster.cores}")


def _draw_chart(axes: Axes, name: str, result: SimResult, longest: float) -> None:
    for need, colour in COLOURS.items():
        lines = [
            [(piece.start, piece.trajectory), (piece.end, piece.trajectory)]
            for piece in result.segments
            if piece.resource_kind is need
        ]
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=1.2, label=need.value))
    axes.set_xlim(0, longest)
    axes.set_ylim(-1, max((piece.trajectory for piece in result.segments), default=0) + 1)
    axes.set_title(f"{name}: what each trajectory's actions ran on", loc="left", fontsize=10)
    axes.set_ylabel("trajectory")
    axes.set_xlabel("seconds")
    axes.legend(loc="lower right")
