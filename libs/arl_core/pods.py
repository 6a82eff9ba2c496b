"""Static provisioning: a pod for each trajectory, its cores held from the first action until the trajectory ends.

What ARL-Tangram (arXiv 2603.13019) is measured against, run by the same services. Its three honest forms: pods as
sized, pods so small that all trajectories fit, and overcommitted pods, all admitted, between which the kernel shares.
"""

from dataclasses import dataclass

from arl_core.free import FreeAmounts
from arl_core.gangs import take_together
from arl_core.model import Amounts, Grant, Plan, Pod, Shape, Waiting, action_part, environment_part
from arl_core.places import Looks
from arl_core.snapshot import Snapshot

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
    overcommitted: bool = False
    """Cores are not counted at all; nodes have to share them."""

    @property
    def has_pods(self) -> bool:
        return True

    def plan(self, snapshot: Snapshot) -> Plan:
        free = FreeAmounts.of(snapshot.pools)
        pods = dict(snapshot.pods)
        grants: list[Grant] = []
        full: set[tuple[int, bool]] = set()
        room, looks = snapshot.quotas.room(), Looks()
        for action in snapshot.waiting.in_order():
            on_cores = action.cls.shape is Shape.DIVISIBLE
            has_pod = on_cores and action.trajectory is not None and not action.together
            pod = pods.get(action.trajectory) if has_pod and action.trajectory is not None else None
            if (pod is not None and pod.busy) or (pod is None and _alike(action) in full):
                continue
            if room is not None and not room.has(action):
                continue
            started = self._start_all(free, action, pod, looks)
            if started is None:
                if pod is None and not action.together:
                    full.add(_alike(action))
                continue
            grants += started
            if room is not None:
                room.take(action)
            grant = started[0]
            if action.trajectory is not None and (pod is not None or action.environment is not None):
                pods[action.trajectory] = Pod(grant.node, busy=True)
        return Plan(grants=tuple(grants))

    def environment_holds(self, amounts: Amounts) -> dict[str, int]:
        return environment_part(amounts) | ({} if self.overcommitted else {_CORES: self.cpu_milli})

    def action_holds(self, amounts: Amounts, *, at_home: bool, in_pod: bool) -> dict[str, int]:
        held = action_part(amounts) if at_home else dict(amounts)
        if at_home or in_pod or self.overcommitted:
            held.pop(_CORES, None)
        return held

    def _start_all(self, free: FreeAmounts, action: Waiting, pod: Pod | None, looks: Looks) -> list[Grant] | None:
        """Each member of a gang is a pod of its own."""
        if not action.together:
            grant = self._start(free, action, pod)
            return None if grant is None else [grant]
        return take_together(free, action, lambda each: self._asks(each, pod=None), looks=looks)

    def _start(self, free: FreeAmounts, action: Waiting, pod: Pod | None) -> Grant | None:
        if action.cls.shape is not Shape.DIVISIBLE:
            return free.take(action, action.cls.demand.minimum)
        amounts, needed = self._asks(action, pod=pod)
        return free.place(action, amounts, needed=needed, pinned=None if pod is None else pod.node)

    def _asks(self, action: Waiting, *, pod: Pod | None) -> tuple[Amounts, Amounts]:
        """What it is granted, and what of that is not held yet."""
        minimum = action.cls.demand.minimum
        amounts = {**minimum, _CORES: self.cpu_milli} if minimum.get(_CORES) else dict(minimum)
        at_home = action.environment is not None
        needed = self.action_holds(amounts, at_home=at_home, in_pod=pod is not None)
        if at_home and pod is None:
            needed |= self.environment_holds(amounts)
        return amounts, needed


def _alike(action: Waiting) -> tuple[int, bool]:
    """Of the actions without a pod: where one of these fits nowhere, none does."""
    return action.cls.key, action.environment is None
