"""What a round may look at."""

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
    """Whoever runs rounds keeps these up to date between them; nothing of it changes during a round."""

    now: float
    queue: QueueIndex
    nodes: Mapping[int, NodeResources]
    """By node."""
    running: RunningIndex = field(default_factory=RunningIndex)
    pods: Mapping[TrajectoryName, TrajectoryPod] = field(default_factory=dict)
    """Of the living trajectories, where a policy gives them pods."""
    curves: CurveCache = field(default_factory=CurveCache)
    """What durations are expected; its clock shows `now`."""
    shares: FairShares = field(default_factory=FairShares)
    quotas: QuotaUsage = field(default_factory=QuotaUsage)
    total: Resources | None = None
    """Capacity of all pools together; None of one that nobody has added up."""
