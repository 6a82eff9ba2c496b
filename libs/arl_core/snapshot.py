"""What a round may look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from arl_core.curves import Curves
from arl_core.fairness import Shares
from arl_core.model import Amounts, Pod, Pool, TrajectoryName
from arl_core.quotas import Quotas
from arl_core.running import RunningIndex
from arl_core.waiting import WaitingIndex

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Whoever runs rounds keeps these up to date between them; nothing of it changes during a round."""

    now: float
    waiting: WaitingIndex
    pools: Mapping[int, Pool]
    """By node."""
    running: RunningIndex = field(default_factory=RunningIndex)
    pods: Mapping[TrajectoryName, Pod] = field(default_factory=dict)
    """Of the living trajectories, where a policy gives them pods."""
    curves: Curves = field(default_factory=Curves)
    """What durations are expected; its clock shows `now`."""
    shares: Shares = field(default_factory=Shares)
    quotas: Quotas = field(default_factory=Quotas)
    total: Amounts | None = None
    """Capacity of all pools together; None of one that nobody has added up."""
