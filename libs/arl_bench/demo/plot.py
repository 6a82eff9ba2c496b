"""The picture of a comparison: a row for each rollout, with one colour each for computing, held idle and waiting."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from arl_bench.demo.core_time import SpanKind, rollout_spans
from arl_bench.demo.policies import PLAIN_NAMES, STATIC, TANGRAM, PolicyRun

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

__all__ = ["draw_policies"]

COLOURS = {SpanKind.COMPUTING: "#2f8f83", SpanKind.HELD_IDLE: "#e08a1e", SpanKind.WAITING: "#d3d8df"}
TEXT, FAINT_TEXT, BACKGROUND, BORDER = "#1f2328", "#59636e", "#ffffff", "#d1d9e0"
BAR_COLOUR = "#8b95a1"
WIDTH_IN = 8.0
"""Width in inches. At 100 dots per inch the picture is as wide as a README shows it, with text of 10 points or more."""
HEADER_IN, PANEL_IN, BAR_IN, FOOTER_IN = 0.95, 2.1, 0.3, 0.15
DPI = 200
ROW_HEIGHT = 0.82


def draw_policies(runs: Sequence[PolicyRun], stem: Path) -> list[Path]:
    """Write `stem`.svg and `stem`.png and return their paths.

    Static pods and Tangram have a panel each, whose rows are rollouts. If more policies ran, bars compare all of them.
    """
    panels = [run for run in runs if run.policy in (STATIC, TANGRAM)] or list(runs[:1])
    panels.sort(key=lambda run: run.policy == TANGRAM)
    bars = list(runs) if len(runs) > len(panels) else []
    bars_in = BAR_IN * len(bars) + 0.7 if bars else 0.0
    heights = [PANEL_IN] * len(panels) + ([bars_in] if bars else [])
    height_in = HEADER_IN + sum(heights) + FOOTER_IN
    with pyplot.rc_context({"font.family": "sans-serif", "font.size": 10, "text.color": TEXT}):
        figure = pyplot.figure(figsize=(WIDTH_IN, height_in))
        _draw_card(figure, panels[0], height_in)
        top_in = height_in - HEADER_IN
        for run in panels:
            _draw_panel(_add_axes(figure, top_in, PANEL_IN - 0.5, height_in), run, max(each.wall_s for each in panels))
            top_in -= PANEL_IN
        if bars:
            _draw_bars(_add_axes(figure, top_in - 0.15, bars_in - 0.7, height_in, left=0.27), bars)
        paths = [stem.with_name(stem.name + suffix) for suffix in (".svg", ".png")]
        for path in paths:
            figure.savefig(path, dpi=DPI, transparent=True)
        pyplot.close(figure)
    return paths


def _add_axes(figure: Figure, top_in: float, axes_in: float, height_in: float, *, left: float = 0.04) -> Axes:
    """Add axes below `top_in`, which is measured from the bottom, with room for a title line above them."""
    bottom_in = top_in - 0.3 - axes_in
    return figure.add_axes((left, bottom_in / height_in, 0.96 - left, axes_in / height_in))


def _draw_card(figure: Figure, run: PolicyRun, height_in: float) -> None:
    """Draw an opaque background with round corners, the title and the legend. A dark page shows around the corners."""
    size: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.015", "mutation_aspect": WIDTH_IN / height_in}
    card = FancyBboxPatch((0.003, 0.004), 0.994, 0.992, transform=figure.transFigure, zorder=-1, **size)
    card.set(facecolor=BACKGROUND, edgecolor=BORDER, linewidth=1)
    figure.add_artist(card)
    title = f"{len(run.rollouts)} coding-agent rollouts on {run.cores:g} cores, a row for each rollout"
    figure.text(0.04, 1 - 0.36 / height_in, title, fontsize=14, fontweight="bold", va="center")
    handles = [Patch(color=colour, label=kind.value) for kind, colour in COLOURS.items()]
    handles.append(Patch(facecolor=BACKGROUND, edgecolor=BORDER, label="model thinks, no cores held"))
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(0.032, 1 - 0.72 / height_in),
        ncols=4,
        frameon=False,
        fontsize=10.5,
        handlelength=1.1,
        handleheight=1.0,
        columnspacing=1.6,
        borderpad=0,
    )


def _draw_panel(axes: Axes, run: PolicyRun, longest_s: float) -> None:
    rows = rollout_spans(run)
    for kind, colour in COLOURS.items():
        for number, spans in enumerate(rows):
            bars = [(span.start_s, span.end_s - span.start_s) for span in spans if span.kind is kind]
            axes.broken_barh(bars, (number - ROW_HEIGHT / 2, ROW_HEIGHT), color=colour, linewidth=0)
    axes.set_xlim(0, longest_s)
    axes.set_ylim(max(1, len(rows)) - 0.5, -0.5)
    name = PLAIN_NAMES[run.policy]
    axes.set_title(name[0].upper() + name[1:], loc="left", fontsize=12.5, fontweight="bold", pad=5)
    _add_figures(axes, f"{run.wall_s:.0f} s", "until the last rollout ends", f"{run.reserved_core_s:.0f} core-s held")
    _set_style(axes)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} s")


def _add_figures(axes: Axes, large: str, *small: str) -> None:
    """Write a large figure and small lines below it at the upper right, which is empty: rows end in order."""
    where: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "top"}
    axes.text(0.998, 1.1, large, fontsize=30, **where)
    for number, line in enumerate(small):
        axes.text(0.998, 0.75 - 0.15 * number, line, fontsize=12, **where)


def _draw_bars(axes: Axes, runs: Sequence[PolicyRun]) -> None:
    names = [PLAIN_NAMES[run.policy] for run in runs]
    drawn = axes.barh(names, [run.wall_s for run in runs], color=BAR_COLOUR, height=0.62)
    axes.bar_label(drawn, [f"{run.wall_s:.0f} s" for run in runs], padding=4, fontsize=10)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1 * max(run.wall_s for run in runs))
    axes.set_title("Time until the last rollout ends", loc="left", fontsize=11, fontweight="bold", pad=4)
    _set_style(axes)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _set_style(axes: Axes) -> None:
    axes.patch.set_alpha(0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(BORDER)
    axes.tick_params(length=0, labelsize=10, labelcolor=FAINT_TEXT)
