"""What runs far longer than others of its class: marked, widened first, and no longer counted on."""

from arl_core.curves import main_resource
from arl_core.estimates import DurationEstimates
from arl_core.model import ActionClass, Resources

__all__ = ["MIN_STRAGGLER_RUNS", "IGNORED_OVERRUN", "straggler_limit_s"]

MIN_STRAGGLER_RUNS = 8
"""Of its very class, or nobody can say what is usual."""
IGNORED_OVERRUN = 2.0
"""After so many times the limit nobody expects its end any more: it is in no forecast of when nodes are free."""
_LATE_QUANTILE, _MEDIAN_FACTOR = 0.99, 5.0


def straggler_limit_s(estimates: DurationEstimates, cls: ActionClass, resources: Resources) -> float | None:
    """The larger of what one run in a hundred exceeds and five times the usual; None where its runs say too little."""
    if cls.is_mixed or estimates.run_count(cls) < MIN_STRAGGLER_RUNS:
        return None
    amount = resources.get(main_resource(cls) or "", 0)
    late_s, usual_s = (estimates.quantile(cls, q, amount) for q in (_LATE_QUANTILE, 0.5))
    return max(late_s, _MEDIAN_FACTOR * usual_s)
