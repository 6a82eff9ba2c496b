"""Static provisioning: a pod for each trajectory, its cores held from the first action until the trajectory ends.

What ARL-Tangram (arXiv 2603.13019) is measured against, run by the same services. Its three honest forms: pods as
sized, pods so small that all trajectories fit, and overcommitted pods, all admitted, between which the kernel shares.
"""

from dataclasses import dataclass

from arl_core.capacity.gang_packing import SearchBudget
from arl_core.capacity.gangs import allocate_gang
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    Grant,
    QueuedAction,
    Resources,
    ResourceShape,
    SchedulingPlan,
    TrajectoryPod,
    action_resources,
    environment_resources,
)

__all__ = ["StaticPods"]

_CORES = "cpu_milli"


@dataclass(frozen=True, slots=True)
class StaticPods:
    """Trajectories are admitted first come, first served, and wait while no node has a whole pod free.

    One action at a time uses a pod's cores, all of them whatever it asks for. An ephemeral action runs on the cores
    of its trajectory's pod if there is one, else it is a pod of its own. What needs no cores is no pod's business.
    """

    cpu_milli: int
    """Of each pod. An action's demand of cores is not looked at."""
    is_overcommitted: bool = False
    """Cores are not counted at all; nodes have to share them."""

    @property
    def has_pods(self) -> bool:
        return True

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        free = NodeFitter.from_nodes(snapshot.nodes)
        pods = dict(snapshot.pods)
        grants: list[Grant] = []
        full: set[tuple[int, bool]] = set()
        room, looks = snapshot.quotas.room(), SearchBudget()
        for action in snapshot.queue.in_order():
            on_cores = action.cls.shape is ResourceShape.DIVISIBLE
            has_pod = on_cores and action.trajectory is not None and not action.gang_members
            pod = pods.get(action.trajectory) if has_pod and action.trajectory is not None else None
            if (pod is not None and pod.is_busy) or (pod is None and _equivalence_key(action) in full):
                continue
            if room is not None and not room.has_room(action):
                continue
            started = self._start_all(free, action, pod, looks)
            if started is None:
                if pod is None and not action.gang_members:
                    full.add(_equivalence_key(action))
                continue
            grants += started
            if room is not None:
                room.consume(action)
            grant = started[0]
            if action.trajectory is not None and (pod is not None or action.environment is not None):
                pods[action.trajectory] = TrajectoryPod(grant.node, is_busy=True)
        return SchedulingPlan(grants=tuple(grants))

    def environment_allocation(self, resources: Resources) -> dict[str, int]:
        return environment_resources(resources) | ({} if self.is_overcommitted else {_CORES: self.cpu_milli})

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> dict[str, int]:
        held = action_resources(resources) if in_environment else dict(resources)
        if in_environment or in_pod or self.is_overcommitted:
            held.pop(_CORES, None)
        return held

    def _start_all(
        self, fitter: NodeFitter, action: QueuedAction, pod: TrajectoryPod | None, budget: SearchBudget
    ) -> list[Grant] | None:
        """Each member of a gang is a pod of its own."""
        if not action.gang_members:
            grant = self._start(fitter, action, pod)
            return None if grant is None else [grant]
        return allocate_gang(fitter, action, lambda each: self._demand_of(each, pod=None), budget=budget)

    def _start(self, fitter: NodeFitter, action: QueuedAction, pod: TrajectoryPod | None) -> Grant | None:
        if action.cls.shape is not ResourceShape.DIVISIBLE:
            return fitter.allocate(action, action.cls.demand.minimum)
        amounts, needed = self._demand_of(action, pod=pod)
        return fitter.place(action, amounts, needed=needed, pinned=None if pod is None else pod.node)

    def _demand_of(self, action: QueuedAction, *, pod: TrajectoryPod | None) -> tuple[Resources, Resources]:
        """What it is granted, and what of that is not held yet."""
        minimum = action.cls.demand.minimum
        amounts = {**minimum, _CORES: self.cpu_milli} if minimum.get(_CORES) else dict(minimum)
        at_home = action.environment is not None
        needed = self.action_allocation(amounts, in_environment=at_home, in_pod=pod is not None)
        if at_home and pod is None:
            needed |= self.environment_allocation(amounts)
        return amounts, needed


def _equivalence_key(action: QueuedAction) -> tuple[int, bool]:
    """Of the actions without a pod: where one of these fits nowhere, none does."""
    return action.cls.key, action.environment is None
