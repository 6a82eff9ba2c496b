"""The demand of actions that share cores, from the processor time that runs of their class used."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from arl_core.domain.model import ActionClass, Resources
from arl_core.durations.scaling_fit import RunCounts

__all__ = [
    "SHARED_GUARANTEE_MILLI",
    "SHARED_SLOT_MILLI",
    "CpuUsage",
    "CpuUsageModel",
    "NoCpuUsage",
    "critical_start_amounts",
    "shared_start_amounts",
]

SHARED_SLOT_MILLI, SHARED_GUARANTEE_MILLI = 500, 100
"""Milli-cores that the scheduler counts for a shared action without a declared minimum, and that it is guaranteed.

Two of them per core: a program uses a core for 20 to 50 % of its time, and an idle core between two commands is lost.
"""
CRITICAL_MILLI = 1
"""Milli-cores that count for an action of a critical trajectory inside an environment, and by which slots are smaller.

So such an action starts although slots fill the node. It does not start if others have all cores exclusively: it would
have no core to run on.
"""
MIN_RUNS = 4
"""Runs of a class before its use of cores is believed."""
SHORT_CPU_S = 0.1
"""Mean CPU-seconds up to which actions start almost at once: they end before a queue would help others."""
SHORT_CHARGE_MILLI = 100
MIN_BUSY_FRACTION = 0.2
"""Least fraction of the charge that counts for actions that mostly wait."""
_CORES = "cpu_milli"


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """The use of processors by runs of one class."""

    runs: int
    cpu_s: float
    """Mean CPU-seconds of a run."""
    busy_fraction: float
    """Mean fraction of a core that runs use while they do not wait for one."""


@runtime_checkable
class CpuUsageModel(Protocol):
    """A model of the use of processors by class."""

    def cpu_usage(self, cls: ActionClass) -> CpuUsage | None:
        """Return the use of processors; None if no run of the class is known."""
        ...

    def run_counts(self, cls: ActionClass) -> RunCounts | None:
        """Return the numbers of ended runs; None if the model does not observe runs."""
        ...


class NoCpuUsage:
    """A model without observations."""

    def cpu_usage(self, cls: ActionClass) -> CpuUsage | None:
        """Return None: nothing is known."""
        del cls
        return None

    def run_counts(self, cls: ActionClass) -> RunCounts | None:
        """Return None: no run is observed."""
        del cls
        return None


def shared_start_amounts(cls: ActionClass, usage: CpuUsage | None) -> Resources:
    """Return the amounts that count for an action of this class at its start.

    A declared minimum counts in full. Otherwise a class that uses little of its cores counts less than its demand, so
    that waiting programs do not keep others from starting.
    """
    minimum = cls.demand.minimum
    if cls.sharing is None or cls.sharing.is_declared:
        return minimum
    slot = max(0, minimum.get(_CORES, 0) - CRITICAL_MILLI)
    if cls.is_mixed or usage is None or usage.runs < MIN_RUNS:
        return {**minimum, _CORES: slot}
    charge = round(slot * min(1.0, max(MIN_BUSY_FRACTION, usage.busy_fraction)))
    if usage.cpu_s <= SHORT_CPU_S:
        charge = SHORT_CHARGE_MILLI
    return {**minimum, _CORES: min(slot, max(charge, cls.sharing.guarantee_milli))}


def critical_start_amounts(cls: ActionClass, amounts: Resources, *, in_environment: bool) -> Resources:
    """Return the amounts that count for an action of a critical trajectory, given those of other actions of its class.

    Inside an environment almost nothing counts, so that it starts although others fill the slots. It then shares the
    cores by weight. An environment runs one action at a time, so there are few such actions. Outside of environments,
    the guarantee counts. A declared minimum and exclusive cores count in full.
    """
    if cls.sharing is None or cls.sharing.is_declared or _CORES not in amounts:
        return amounts
    most = CRITICAL_MILLI if in_environment else cls.sharing.guarantee_milli
    return {**amounts, _CORES: min(amounts[_CORES], most)}
