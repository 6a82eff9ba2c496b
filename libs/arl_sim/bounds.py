"""Lower bounds on the mean ACT of any schedule, for actions with given submission times.

The bound applies to schedules that know everything in advance and never resize; a schedule that resizes may be better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arl_sim.workload import ActionWork

__all__ = ["BoundJob", "lagrangian_bound_s", "speed_bound_s"]

Floats = npt.NDArray[np.float64]

STALL_LIMIT = 8
"""Iterations without a better bound after which the step size is reduced."""


@dataclass(frozen=True, slots=True)
class BoundJob:
    work: ActionWork
    submitted: float


def speed_bound_s(jobs: Sequence[BoundJob]) -> float:
    """Return the mean ACT if no action ever waits."""
    return float(np.mean([job.work.fastest_s for job in jobs]))


def lagrangian_bound_s(
    jobs: Sequence[BoundJob], units: int, *, achieved_s: float, iterations: int = 150, grid_s: float = 1.0
) -> float:
    """Return a lower bound of the mean ACT of any schedule without resizing on `units` units.

    For any prices of a unit-second over time, this is a bound: the cost of each job at its own best start and
    parallelism, minus the revenue of all units. Prices are constant between grid points, so the best start is the
    submission, a grid point, or a start that ends at a grid point. Prices rise where demand exceeds supply
    (subgradient, Polyak steps). `achieved_s` is the mean ACT of some schedule; it scales the steps.
    """
    problem = _BoundProblem(jobs, units, grid_s)
    prices = best_prices = np.zeros(problem.steps)
    best, scale, stalled = -np.inf, 1.0, 0
    for _ in range(iterations):
        value, used = problem.evaluate(prices)
        if value > best + 1e-6:
            best, best_prices, stalled = value, prices, 0
        else:
            stalled += 1
            if stalled >= STALL_LIMIT:
                scale, stalled, prices = scale * 0.6, 0, best_prices
        excess = used - units * grid_s
        excess[(prices <= 0) & (excess < 0)] = 0.0
        norm = float((excess**2).sum())
        if norm < 1e-9:
            break
        step = scale * max(achieved_s * len(jobs) - value, 1e-3) / norm
        prices = np.maximum(0.0, prices + step * excess)
    return best / len(jobs)


class _BoundProblem:
    """The bound as a matrix: a row for each job and degree of parallelism, a column for each candidate start."""

    def __init__(self, jobs: Sequence[BoundJob], units: int, grid_s: float) -> None:
        self._units, self._grid_s = units, grid_s
        last = max(job.submitted for job in jobs)
        work = sum(min(k * job.work.duration_s(k) for k in job.work.choices) for job in jobs)
        self.steps = int((last + 1.2 * work / units + 40.0) / grid_s) + 1
        self._grid: Floats = np.arange(self.steps + 1, dtype=np.float64) * grid_s
        rows = [(at, job, k) for at, job in enumerate(jobs) for k in job.work.choices if k <= units]
        self._job_of = np.array([at for at, _, _ in rows])
        self._parallelism: Floats = np.array([float(k) for _, _, k in rows])
        self._seconds: Floats = np.array([job.work.duration_s(k) for _, job, k in rows])
        self._submitted: Floats = np.array([job.submitted for _, job, _ in rows])
        self._first_row = np.searchsorted(self._job_of, np.arange(len(jobs)))
        self._starts = self._candidates()
        self._own: Floats = self._starts + (self._seconds - self._submitted)[:, None]

    def evaluate(self, prices: Floats) -> tuple[float, Floats]:
        """Return the bound at these prices, and the unit-seconds that the jobs use in each time step."""
        earned: Floats = np.concatenate([[0.0], np.cumsum(prices) * self._grid_s])
        ends = self._starts + self._seconds[:, None]
        paid = np.interp(ends, self._grid, earned) - np.interp(self._starts, self._grid, earned)
        costs = self._own + self._parallelism[:, None] * paid
        column = costs.argmin(axis=1)
        best_of_row = costs[np.arange(len(column)), column]
        rows = self._cheapest_rows(best_of_row)
        value = float(best_of_row[rows].sum()) - self._units * float(prices.sum()) * self._grid_s
        return value, self._used(rows, self._starts[rows, column[rows]])

    def _candidates(self) -> Floats:
        submitted = self._submitted[:, None]
        at_grid = np.broadcast_to(self._grid, (len(self._seconds), len(self._grid)))
        starts = np.concatenate([submitted, at_grid, at_grid - self._seconds[:, None]], axis=1)
        late_enough: Floats = np.maximum(starts, submitted)
        return late_enough

    def _cheapest_rows(self, costs: Floats) -> npt.NDArray[np.int64]:
        least = np.minimum.reduceat(costs, self._first_row)
        is_least = costs <= least[self._job_of]
        _, first = np.unique(self._job_of[is_least], return_index=True)
        return np.nonzero(is_least)[0][first]

    def _used(self, rows: npt.NDArray[np.int64], starts: Floats) -> Floats:
        ends = starts + self._seconds[rows]
        low = np.maximum(self._grid[:-1], starts[:, None])
        high = np.minimum(self._grid[1:], ends[:, None])
        used: Floats = (self._parallelism[rows][:, None] * np.maximum(0.0, high - low)).sum(axis=0)
        return used
