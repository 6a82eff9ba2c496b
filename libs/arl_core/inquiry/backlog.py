"""The load of each kind of node: actions that wait for any node of the kind, and actions that run.

Controllers of node pools scale by these figures. They count what further nodes could start: no paused task, no action
without room in its task's quota, and of each environment only the first action.
"""

from dataclasses import dataclass

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import ActionClass, Resources, ResourceShape, counted_resource, is_slot_resource
from arl_core.durations.estimates import DurationEstimates
from arl_core.queue.action_bucket import ActionBucket
from arl_core.queue.quotas import QuotaRoom

__all__ = ["CPU_KIND", "NodeKindLoad", "measure_load", "node_kind_of"]

CPU_KIND, GPU_KIND, API_KIND = "cpu", "gpu", "api"
_CORES = "cpu_milli"


@dataclass(slots=True, kw_only=True)
class NodeKindLoad:
    """The load of one kind of node. Cores are the minimum cores of actions, also if they have more."""

    waiting: int = 0
    """Actions that any node of the kind may start."""
    waiting_milli: int = 0
    """Milli-cores of the waiting actions."""
    waiting_milli_s: float = 0.0
    """Milli-core-seconds of the waiting actions that have an estimate of their run time."""
    unknown_milli: int = 0
    """Milli-cores of the waiting actions without an estimate."""
    pinned: int = 0
    """Waiting actions that can only start on the node of their environment; further nodes do not help them."""
    oldest_submitted: float | None = None
    """Submission time of the oldest waiting action that is not pinned, by the database's clock."""
    running: int = 0
    """Granted and running actions."""
    busy_milli: int = 0
    """Milli-cores of the granted and running actions."""


def measure_load(snapshot: CellSnapshot) -> dict[str, NodeKindLoad]:
    """Return the load by kind of node. The kinds cpu, gpu and api are always included. Costs O(classes + running)."""
    loads = {kind: NodeKindLoad() for kind in (CPU_KIND, GPU_KIND, API_KIND)}
    room = snapshot.quotas.room()
    for bucket in snapshot.queue.buckets():
        _add_waiting(loads[node_kind_of(bucket.cls)], bucket, snapshot, room)
    for node in snapshot.nodes.values():
        load = loads.setdefault(node.kind, NodeKindLoad())
        for running in snapshot.running.on_node(node.node).values():
            minimum: Resources = running.cls.demand.minimum if running.cls is not None else running.resources
            load.running += 1
            load.busy_milli += minimum.get(_CORES, 0)
    return loads


def node_kind_of(cls: ActionClass) -> str:
    """Return the kind of node that runs actions of this class."""
    counted = counted_resource(cls.demand.minimum)
    if cls.shape is ResourceShape.GROUP or (counted is not None and is_slot_resource(counted)):
        return GPU_KIND
    return CPU_KIND if counted is None else API_KIND


def _add_waiting(load: NodeKindLoad, bucket: ActionBucket, snapshot: CellSnapshot, room: QuotaRoom | None) -> None:
    first = bucket.first
    count = len(bucket) + len(first.gang_members)  # the bucket of a gang has one entry
    if room is not None:
        count = room.consume_up_to(first, count)
    if bucket.key.node is not None:
        load.pinned += count
        return
    if not count:
        return
    load.waiting += count
    if load.oldest_submitted is None or first.submitted < load.oldest_submitted:
        load.oldest_submitted = first.submitted
    milli = count * bucket.cls.demand.minimum.get(_CORES, 0)
    load.waiting_milli += milli
    durations = snapshot.curves.durations
    if isinstance(durations, DurationEstimates) and (
        durations.run_count(bucket.cls) or durations.has_pooled_estimate(bucket.cls)
    ):
        load.waiting_milli_s += milli * snapshot.curves.expected_s(bucket.cls, bucket.cls.demand.minimum)
    else:
        load.unknown_milli += milli
