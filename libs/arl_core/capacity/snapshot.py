"""Input of a scheduling round."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from arl_core.capacity.running_index import RunningIndex
from arl_core.domain.model import NodeResources, Resources, TrajectoryName, TrajectoryPod
from arl_core.durations.curves import CurveCache
from arl_core.queue.fairness import FairShares
from arl_core.queue.queue_index import QueueIndex
from arl_core.queue.quotas import QuotaUsage

__all__ = ["CellSnapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSnapshot:
    """The state of a cell at the start of a round.

    The caller updates it between rounds; it never changes during a round.
    """

    now: float
    queue: QueueIndex
    nodes: Mapping[int, NodeResources]
    """Nodes by number."""
    running: RunningIndex = field(default_factory=RunningIndex)
    pods: Mapping[TrajectoryName, TrajectoryPod] = field(default_factory=dict)
    """Pods of the live trajectories, if the policy uses pods."""
    curves: CurveCache = field(default_factory=CurveCache)
    """Expected durations; the clock of the cache is at `now`."""
    shares: FairShares = field(default_factory=FairShares)
    quotas: QuotaUsage = field(default_factory=QuotaUsage)
    total: Resources | None = None
    """Capacity of all nodes; None if it has not been computed."""
