"""A plot of cores over time with a band for each policy and a colour for each trajectory."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import matplotlib

from arl_bench.demo.policies import PolicyRun
from arl_bench.demo.rollout import DemoRollout

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

__all__ = ["draw_policies"]

COLUMNS = 400
"""Number of sampled moments in a band."""
RESERVED_ALPHA = 0.28


@dataclass(frozen=True, slots=True)
class _DrawnShare:
    """A trajectory's share of the cores at one moment."""

    trajectory: int
    low: float
    height: float
    is_running: bool


def draw_policies(runs: Sequence[PolicyRun], stem: Path) -> list[Path]:
    """Write `stem`.svg and `stem`.png. Running actions are solid, idle pods with reserved cores are pale."""
    longest = max(run.wall_s for run in runs)
    figure, bands = pyplot.subplots(
        len(runs), 1, figsize=(12, 1.0 + 1.7 * len(runs)), sharex=True, squeeze=False, layout="constrained"
    )
    for run, band in zip(runs, bands[:, 0], strict=True):
        _draw_band(band, run, longest)
    bands[-1, 0].set_xlabel("seconds")
    figure.suptitle("Who has the cores: a colour for each trajectory, pale where it holds them and waits")
    paths = [stem.with_suffix(suffix) for suffix in (".svg", ".png")]
    for path in paths:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return paths


def _draw_band(band: Axes, run: PolicyRun, longest: float) -> None:
    acts = [action.times.act_s or 0.0 for action in run.actions]
    pods = "" if run.pod_cores is None else f", pods of {run.pod_cores:.3g}"
    mean_s = sum(acts) / max(1, len(acts))
    title = f"{run.policy}{pods}: mean ACT {mean_s:.2f} s, step {run.wall_s:.0f} s"
    band.set_title(title, loc="left", fontsize=10)
    colours = pyplot.get_cmap("turbo")
    for piece, start, end in _merge_shares(run):
        colour = colours(((piece.trajectory * 29) % len(run.rollouts)) / max(1, len(run.rollouts) - 1))
        band.broken_barh(
            [(start, end - start)],
            (piece.low, piece.height),
            color=colour,
            alpha=1.0 if piece.is_running else RESERVED_ALPHA,
            linewidth=0,
        )
    band.set_xlim(0, longest)
    band.set_ylim(0, run.cores)
    band.set_ylabel("cores")
    for side in ("top", "right"):
        band.spines[side].set_visible(False)


def _merge_shares(run: PolicyRun) -> list[tuple[_DrawnShare, float, float]]:
    """Return shares with their start and end. Equal shares at adjacent moments are merged."""
    if not run.actions:
        return []
    begin = min(action.created_at for action in run.actions)
    step = run.wall_s / COLUMNS
    found: list[tuple[_DrawnShare, float, float]] = []
    open_: dict[_DrawnShare, float] = {}
    for column in range(COLUMNS + 1):
        now = set(_core_shares(run, begin, (column + 0.5) * step)) if column < COLUMNS else set()
        for piece in [piece for piece in open_ if piece not in now]:
            found.append((piece, open_.pop(piece), column * step))
        for piece in now:
            open_.setdefault(piece, column * step)
    return found


def _core_shares(run: PolicyRun, begin: datetime, at_s: float) -> list[_DrawnShare]:
    """Return the shares at one moment. If the total exceeds the cores, running actions share them proportionally."""
    shares = [
        (number, cores, computes)
        for number, rollout in enumerate(run.rollouts)
        if (cores := _cores_at(run, rollout, begin, at_s, computes := _is_running(rollout, begin, at_s))) > 0
    ]
    total = sum(cores for _, cores, _ in shares)
    scale = min(1.0, run.cores / total) if total else 1.0
    pieces, low = [], 0.0
    for number, cores, computes in shares:
        pieces.append(_DrawnShare(number, round(low, 4), round(cores * scale, 4), computes))
        low += cores * scale
    return pieces


def _cores_at(run: PolicyRun, rollout: DemoRollout, begin: datetime, at_s: float, computes: bool) -> float:
    if run.pod_cores is None or run.policy == "overcommitted":
        return max(_running_cores(rollout, begin, at_s), default=0.0)
    granted = [_seconds_since(action.granted_at, begin) for action in rollout.actions if action.granted_at]
    ended = [_seconds_since(action.settled_at, begin) for action in rollout.actions if action.settled_at]
    return run.pod_cores if granted and ended and min(granted) <= at_s < max(ended) else 0.0


def _is_running(rollout: DemoRollout, begin: datetime, at_s: float) -> bool:
    return bool(_running_cores(rollout, begin, at_s))


def _running_cores(rollout: DemoRollout, begin: datetime, at_s: float) -> list[float]:
    return [
        (action.allocation or {}).get("cpu_milli", 0) / 1000
        for action in rollout.actions
        if action.started_at
        and action.settled_at
        and _seconds_since(action.started_at, begin) <= at_s < _seconds_since(action.settled_at, begin)
    ]


def _seconds_since(moment: datetime | None, begin: datetime) -> float:
    return (moment - begin).total_seconds() if moment is not None else 0.0
