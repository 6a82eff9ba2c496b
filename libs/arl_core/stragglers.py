"""What runs far longer than others of its class: marked, widened first, and no longer counted on."""

from arl_core.curves import main_resource
from arl_core.estimates import Estimates
from arl_core.model import ActionClass, Amounts

__all__ = ["RUNS_TO_TELL", "UNCOUNTED", "straggling_after_s"]

RUNS_TO_TELL = 8
"""Of its very class, or nobody can say what is usual."""
UNCOUNTED = 2.0
"""After so many times the limit nobody expects its end any more: it is in no forecast of when nodes are free."""
_LATE, _TIMES_USUAL = 0.99, 5.0


def straggling_after_s(estimates: Estimates, cls: ActionClass, amounts: Amounts) -> float | None:
    """The larger of what one run in a hundred exceeds and five times the usual; None where its runs say too little."""
    if cls.mixed or estimates.runs(cls) < RUNS_TO_TELL:
        return None
    amount = amounts.get(main_resource(cls) or "", 0)
    late_s, usual_s = (estimates.quantile(cls, q, amount) for q in (_LATE, 0.5))
    return max(late_s, _TIMES_USUAL * usual_s)
