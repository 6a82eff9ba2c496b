"""Weights of actions that share the cores of a node, so that little remaining work ends first.

The kernel divides the cores in proportion to the weights of the actions that want them. Each action keeps the cores
that it is guaranteed; the rest of the node is divided by estimated remaining work.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["CRITICAL_FACTOR", "CpuShareState", "CpuWeightRange", "cpu_weights", "remaining_cpu_s"]

REMAINING_EXPONENT = -0.25
"""Exponent of the remaining CPU-seconds. Measured on a kernel; a stronger preference lengthens long commands."""
CRITICAL_FACTOR = 8.0
"""Factor of an action whose trajectory is expected to end its step last."""
MIN_REMAINING_S = 0.05
OVERRUN_FRACTION = 0.5
"""Fraction of the used CPU time that an action past its estimate is expected to need again (Tsafrir et al. 2007)."""
DEFAULT_GUARANTEE_FRACTION = 0.25
"""Fraction of the cores without a declared guarantee that default guarantees may take.

Otherwise, the default guarantees of 20 short commands would take both cores of a small node, and nothing would be left
to divide by remaining work.
"""
MAX_RATIO = 700.0
"""Largest ratio of two weights. The kernel does not follow larger ones (measured with `cpu.shares`)."""

HolderT = TypeVar("HolderT", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuShareState:
    """A running action that shares cores."""

    guarantee_milli: int
    """Milli-cores that the action gets over any second if it wants them."""
    expected_cpu_s: float
    """CPU-seconds that its class takes on average."""
    used_cpu_s: float = 0.0
    is_critical: bool = False
    is_declared: bool = True
    """True if the caller declared the guarantee. Others are guaranteed less if many run."""


@dataclass(frozen=True, slots=True)
class CpuWeightRange:
    """The smallest and the largest weight of a kernel interface, such as 1 and 10000 for `cpu.weight`."""

    least: int
    most: int
    per_core: int
    """Weight of an action whose target share is one core, and of an action with one exclusive core.

    The kernel divides the weight of the parent among the cores in proportion to the weights on each core. So the
    weights on a shared core add up to the weight on an exclusive one.
    """

    def of_cores(self, cores: float) -> int:
        """Return the weight of an action with this number of cores."""
        return min(self.most, max(self.least, round(self.per_core * cores)))


def cpu_weights(
    running: Mapping[HolderT, CpuShareState], *, cores: float, weights: CpuWeightRange
) -> dict[HolderT, int]:
    """Return the kernel weight of each running action: its target share in cores, times the weight of a core.

    Args:
        running: All actions that share the cores.
        cores: Number of cores that they share.
        weights: Range of the kernel's weights.
    """
    if not running:
        return {}
    guaranteed = _guaranteed_cores(running, cores)
    surplus = max(0.0, cores - sum(guaranteed.values()))
    pull = {name: _pull(each) for name, each in running.items()}
    total = sum(pull.values())
    share = {name: guaranteed[name] + surplus * pull[name] / total for name in running}
    floor = max(share.values()) / MAX_RATIO
    return {name: weights.of_cores(max(floor, value)) for name, value in share.items()}


def _guaranteed_cores(running: Mapping[HolderT, CpuShareState], cores: float) -> dict[HolderT, float]:
    """Return the guaranteed cores of each action. Default guarantees shrink if they do not fit into their fraction."""
    declared = sum(each.guarantee_milli for each in running.values() if each.is_declared) / 1000
    default = sum(each.guarantee_milli for each in running.values() if not each.is_declared) / 1000
    room = DEFAULT_GUARANTEE_FRACTION * max(0.0, cores - declared)
    scale = room / default if default > room else 1.0
    return {name: each.guarantee_milli / 1000 * (1.0 if each.is_declared else scale) for name, each in running.items()}


def remaining_cpu_s(state: CpuShareState) -> float:
    """Return the CPU-seconds that the action is expected to need still."""
    left = state.expected_cpu_s - state.used_cpu_s
    return max(left, OVERRUN_FRACTION * state.used_cpu_s, MIN_REMAINING_S)


def _pull(state: CpuShareState) -> float:
    factor = CRITICAL_FACTOR if state.is_critical else 1.0
    return float(factor * remaining_cpu_s(state) ** REMAINING_EXPONENT)
