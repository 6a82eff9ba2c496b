"""Static provisioning: one pod per trajectory, with its cores allocated from the first action to the end.

This is the baseline of ARL-Tangram (arXiv 2603.13019), run by the same services. It has four forms: full-size pods,
pods small enough that all trajectories fit, overcommitted pods with a CPU limit, and pods without a CPU limit. The
kernel shares the cores between the pods of the last two forms.
"""

from dataclasses import dataclass

from arl_core.capacity.gang_packing import SearchBudget
from arl_core.capacity.gangs import allocate_gang
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    ClassVariant,
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
    """A policy that admits trajectories in arrival order; a trajectory waits until a node has a whole pod free.

    One action at a time uses all cores of a pod, regardless of its demand. An ephemeral action runs on the cores of its
    trajectory's pod if there is one; otherwise it is a pod of its own. Actions without cores need no pod.
    """

    cpu_milli: int
    """Milli-cores of each pod. An action's own core demand is ignored."""
    is_overcommitted: bool = False
    """True if cores are not counted; the kernel shares them. A pod uses at most `cpu_milli`."""
    is_unlimited: bool = False
    """True if a pod may use all cores of its node, as Kubernetes pods with CPU requests and no CPU limit.

    Pods are then overcommitted, and `cpu_milli` has no effect.
    """

    @property
    def shares_cores(self) -> bool:
        """Return True if the kernel shares the cores between pods."""
        return self.is_overcommitted or self.is_unlimited

    @property
    def has_pods(self) -> bool:
        """Return True: cores belong to the pods of trajectories."""
        return True

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        """Plan one round in arrival order; each trajectory needs a node with a whole free pod."""
        if self.is_unlimited:
            most = max((pool.capacity.get(_CORES, 0) for pool in snapshot.nodes.values()), default=0)
            return StaticPods(most, is_overcommitted=True).plan(snapshot)
        free = NodeFitter.from_nodes(snapshot.nodes)
        pods = dict(snapshot.pods)
        grants: list[Grant] = []
        full: set[tuple[ClassVariant, bool]] = set()
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
        """Return the memory and disk of the first action and, unless the kernel shares them, the cores of the pod."""
        return environment_resources(resources) | ({} if self.shares_cores else {_CORES: self.cpu_milli})

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> dict[str, int]:
        """Return the amounts that neither the environment nor the pod occupies already."""
        held = action_resources(resources) if in_environment else dict(resources)
        if in_environment or in_pod or self.shares_cores:
            held.pop(_CORES, None)
        return held

    def _start_all(
        self, fitter: NodeFitter, action: QueuedAction, pod: TrajectoryPod | None, budget: SearchBudget
    ) -> list[Grant] | None:
        """Start the action, or each member of its gang as a separate pod."""
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
        """Return the amounts to grant, and the part that is not allocated yet."""
        minimum = action.cls.demand.minimum
        amounts = {**minimum, _CORES: self.cpu_milli} if minimum.get(_CORES) else dict(minimum)
        at_home = action.environment is not None
        needed = self.action_allocation(amounts, in_environment=at_home, in_pod=pod is not None)
        if at_home and pod is None:
            needed |= self.environment_allocation(amounts)
        return amounts, needed


def _equivalence_key(action: QueuedAction) -> tuple[ClassVariant, bool]:
    """Return a key of actions without a pod; if one of them fits on no node, none does."""
    return action.cls.variant, action.environment is None
