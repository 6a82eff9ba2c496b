"""Duration models of a simulated scheduler: learnt from past runs, or with more knowledge than possible."""

from typing import Protocol

from arl_core.domain.model import ActionClass
from arl_core.durations.curves import DeclaredDurations, DurationModel
from arl_core.durations.estimates import DurationEstimates
from arl_core.durations.scaling_fit import RunCounts
from arl_core.durations.shared_demand import CpuUsage
from arl_sim.workload import ActionWork, ResourceKind

__all__ = ["ClairvoyantDurations", "ClassMeans", "LearnedDurations", "SimDurationModel", "UniformDurations"]

WINDOW = 64
"""Weight of a new observation in a mean: at least one part in this many."""
PRIOR_S = 1.0
OUTLIER_FACTOR = 20.0
"""Cap on an observation, as a multiple of the mean."""


class SimDurationModel(DurationModel, Protocol):
    """A duration model that is informed of submissions and ends."""

    @property
    def has_separate_classes(self) -> bool:
        """Return True if each action is a class of its own."""
        ...

    def submitted(self, cls: ActionClass, work: ActionWork) -> None: ...

    def ended(self, cls: ActionClass, work: ActionWork, *, amount: int, run_s: float, steady: bool) -> None:
        """Record a run of `run_s` seconds with `amount` of the elastic resource; an average if not `steady`."""
        ...


class UniformDurations(DeclaredDurations):
    """A model in which all actions take equally long on one unit."""

    @property
    def has_separate_classes(self) -> bool:
        return False

    def submitted(self, cls: ActionClass, work: ActionWork) -> None:
        pass

    def ended(self, cls: ActionClass, work: ActionWork, *, amount: int, run_s: float, steady: bool) -> None:
        pass


class ClairvoyantDurations:
    """A model that knows the duration of each action before it runs."""

    has_separate_classes = True

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def seconds(self, cls: ActionClass, amount: int) -> float:
        return self._seconds.get(cls.key, PRIOR_S) * _relative(cls, amount)

    def submitted(self, cls: ActionClass, work: ActionWork) -> None:
        self._seconds[cls.key] = work.duration_s(work.choices[0])

    def ended(self, cls: ActionClass, work: ActionWork, *, amount: int, run_s: float, steady: bool) -> None:
        self._seconds.pop(cls.key, None)


class LearnedDurations:
    """The estimates that the real scheduler learns."""

    has_separate_classes = False

    def __init__(self) -> None:
        self._estimates = DurationEstimates()

    def seconds(self, cls: ActionClass, amount: int) -> float:
        return self._estimates.seconds(cls, amount)

    def cpu_usage(self, cls: ActionClass) -> CpuUsage | None:
        return self._estimates.cpu_usage(cls)

    def run_counts(self, cls: ActionClass) -> RunCounts | None:
        return self._estimates.run_counts(cls)

    def quantile(self, cls: ActionClass, q: float, amount: int) -> float:
        return self._estimates.quantile(cls, q, amount)

    def submitted(self, cls: ActionClass, work: ActionWork) -> None:
        pass

    def ended(self, cls: ActionClass, work: ActionWork, *, amount: int, run_s: float, steady: bool) -> None:
        elastic = cls.demand.elastic
        cpu_s = work.seconds if work.resource_kind is ResourceKind.CPU else 0.0
        had = amount if elastic is not None else cls.demand.minimum.get("cpu_milli", 0)
        if cls.sharing is not None:
            # The node counts the time of an action without the waiting for cores, but with other waiting.
            run_s = cpu_s / min(1.0, work.choices[-1])
        self._estimates.observe(cls, amount=had, run_s=run_s, cpu_s=cpu_s, is_steady=steady)


class ClassMeans:
    """A model of running class means, as in the first experiments; unknown classes use the mean of their kind."""

    has_separate_classes = False

    def __init__(self) -> None:
        self._classes: dict[int, tuple[int, float]] = {}
        self._kinds: dict[tuple[str, bool], tuple[int, float]] = {}

    def seconds(self, cls: ActionClass, amount: int) -> float:
        known = self._classes.get(cls.key) or self._kinds.get(_pool_key(cls))
        return (known[1] if known is not None else PRIOR_S) * _relative(cls, amount)

    def submitted(self, cls: ActionClass, work: ActionWork) -> None:
        pass

    def ended(self, cls: ActionClass, work: ActionWork, *, amount: int, run_s: float, steady: bool) -> None:
        seen_s = run_s / _relative(cls, amount) if steady else work.duration_s(work.choices[0])
        known = self._classes.get(cls.key)
        if known is not None:
            seen_s = min(seen_s, OUTLIER_FACTOR * known[1])
        self._classes[cls.key] = _update_mean(known, seen_s)
        self._kinds[_pool_key(cls)] = _update_mean(self._kinds.get(_pool_key(cls)), seen_s)


def _relative(cls: ActionClass, amount: int) -> float:
    elastic = cls.demand.elastic
    if elastic is None:
        return 1.0
    return elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


def _pool_key(cls: ActionClass) -> tuple[str, bool]:
    return cls.kind, cls.demand.elastic is not None


def _update_mean(previous: tuple[int, float] | None, seconds: float) -> tuple[int, float]:
    count, mean = previous or (0, 0.0)
    count += 1
    return count, mean + (seconds - mean) / min(count, WINDOW)
