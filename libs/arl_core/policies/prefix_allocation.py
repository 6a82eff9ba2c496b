"""Minimal sum of durations of the first actions of a sequence on a number of units: a prefix dynamic programme."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arl_core.durations.curves import ParallelismOption

__all__ = ["PrefixAllocation"]


class PrefixAllocation:
    """The optima of all prefixes: `F[m][u] = min over options of F[m-1][u - units] + seconds`.

    O(actions x units x options). Options are whole numbers of units; a prefix that does not fit costs infinity.
    """

    def __init__(self, choices: Sequence[Sequence[ParallelismOption]], units: int) -> None:
        self._choices = choices
        self._units = units
        self._sums = [np.zeros(units + 1)]
        self._chosen: list[npt.NDArray[np.int64]] = []
        for widths in choices:
            self._add_action(widths)

    def total_s(self, first: int) -> float:
        """Return the minimal sum of durations of the `first` actions."""
        return float(self._sums[first][self._units])

    def chosen_options(self, first: int) -> list[ParallelismOption]:
        """Return the options of that minimum, one per action; valid only if the sum is finite."""
        left, found = self._units, []
        for widths, chosen in zip(reversed(self._choices[:first]), reversed(self._chosen[:first]), strict=True):
            width = widths[chosen[left]]
            found.append(width)
            left -= int(width.units)
        return found[::-1]

    def _add_action(self, options: Sequence[ParallelismOption]) -> None:
        before = self._sums[-1]
        sums, chosen = np.full(self._units + 1, np.inf), np.zeros(self._units + 1, dtype=np.int64)
        for place, width in enumerate(options):
            units = int(width.units)
            if units > self._units:
                break
            with_it = before[: self._units + 1 - units] + width.seconds
            is_better = with_it < sums[units:] - _TIE_S
            sums[units:][is_better] = with_it[is_better]
            chosen[units:][is_better] = place
        self._sums.append(sums)
        self._chosen.append(chosen)


_TIE_S = 1e-12
