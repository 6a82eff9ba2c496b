"""A round: which queued actions start now, on which node, with what amounts.

Values in, values out. A policy chooses the order and the amounts, and what counts as held; the interface stays.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from arl_core.fence import Fence
from arl_core.ledger import fits
from arl_core.model import (
    ActionClass,
    Amounts,
    Grant,
    Plan,
    Pool,
    Shape,
    Waiting,
    action_part,
    environment_part,
)
from arl_core.snapshot import Snapshot
from arl_core.waiting import Walk

__all__ = ["ENVIRONMENT_HEADROOM", "FirstComeFirstServed", "FreeAmounts", "Policy"]

ENVIRONMENT_HEADROOM = 8
"""New environments leave one part in so many of a node's memory and disk to actions outside of them."""


class Policy(Protocol):
    """What starts now, and what it holds. What an action and its environment hold is all that is ever counted."""

    @property
    def has_pods(self) -> bool:
        """Whether it looks at `Snapshot.pods`."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """One round. Two actions of one environment are never granted in one."""
        ...

    def environment_holds(self, amounts: Amounts) -> dict[str, int]:
        """What a persistent environment holds until it ends, of what its first action was granted."""
        ...

    def action_holds(self, amounts: Amounts, *, at_home: bool, in_pod: bool) -> dict[str, int]:
        """What a granted action holds besides; `at_home` in a persistent environment, `in_pod` on a pod's cores."""
        ...


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """Arrival order within a priority, at minimum demand.

    An action that fits nowhere stays queued, and does not hold up those behind it.
    """

    @property
    def has_pods(self) -> bool:
        return False

    def plan(self, snapshot: Snapshot) -> Plan:
        """Never gives more than a pool has free."""
        free = FreeAmounts.of(snapshot.pools)
        walk = Walk(snapshot.waiting.buckets())
        grants: list[Grant] = []
        while (action := walk.head) is not None:
            grant = free.take(action, action.cls.demand.minimum)
            if grant is None:
                walk.leave_bucket()
            else:
                grants.append(grant)
                walk.advance()
        return Plan(grants=tuple(grants))

    def environment_holds(self, amounts: Amounts) -> dict[str, int]:
        return environment_part(amounts)

    def action_holds(self, amounts: Amounts, *, at_home: bool, in_pod: bool) -> dict[str, int]:
        return action_part(amounts) if at_home else dict(amounts)


@dataclass(slots=True)
class FreeAmounts:
    """What is left of each pool while a round spends it."""

    pools: Mapping[int, Pool]
    free: dict[int, dict[str, int]]
    devices: dict[int, list[int]]
    environments: dict[int, int]
    placed: dict[UUID, int] = field(default_factory=dict)

    @classmethod
    def of(cls, pools: Mapping[int, Pool]) -> "FreeAmounts":
        return cls(
            pools=pools,
            free={node: dict(pool.free) for node, pool in pools.items()},
            devices={node: sorted(pool.free_devices) for node, pool in pools.items()},
            environments={node: pool.environments for node, pool in pools.items()},
        )

    def node_of(self, action: Waiting) -> int | None:
        """The node an action is pinned to by its environment, also one placed earlier in this round."""
        if action.environment is None:
            return None
        return self.placed.get(action.environment.id, action.environment.node)

    def take(self, action: Waiting, amounts: Amounts) -> Grant | None:
        pinned = self.node_of(action)
        return self.place(action, amounts, needed=amounts if pinned is None else action_part(amounts), pinned=pinned)

    def place(self, action: Waiting, amounts: Amounts, *, needed: Amounts, pinned: int | None) -> Grant | None:
        """Grant `amounts`, of which `needed` are not held yet; on the node `pinned`, or on any that has them."""
        node = self._choose(action, needed, pinned)
        if node is None:
            return None
        devices = self._take_devices(node, needed.get("gpu", 0)) if action.cls.shape is Shape.GROUP else ()
        for resource, amount in needed.items():
            self.free[node][resource] -= amount
        environment = action.environment
        if environment is not None and pinned is None:
            self.placed[environment.id] = node
            self.environments[node] += 1
        return Grant(
            fence=Fence(action.id, action.grant_no + 1),
            node=node,
            amounts=dict(amounts),
            environment=environment.id if environment is not None else None,
            devices=devices,
        )

    def _choose(self, action: Waiting, needed: Amounts, pinned: int | None) -> int | None:
        nodes = [node for node in self._candidates(pinned) if self._fits(node, action.cls, needed)]
        if action.environment is not None and pinned is None:
            roomy = [node for node in nodes if self._leaves_headroom(node, needed)]
            return min(roomy, key=self._emptiest_for_environments, default=None)
        if not nodes:
            return None
        return min(nodes, key=lambda node: (self.free[node].get("cpu_milli", 0), node))

    def _candidates(self, pinned: int | None) -> Iterable[int]:
        if pinned is not None:
            return (pinned,) if pinned in self.pools and self.pools[pinned].serving else ()
        return (node for node, pool in self.pools.items() if pool.accepting and pool.serving)

    def _fits(self, node: int, cls: ActionClass, needed: Amounts) -> bool:
        pool = self.pools[node]
        if pool.shape is not cls.shape or not cls.requires <= pool.enforces or not fits(needed, self.free[node]):
            return False
        return pool.shape is not Shape.GROUP or _aligned_group(self.devices[node], needed.get("gpu", 0)) is not None

    def _leaves_headroom(self, node: int, needed: Amounts) -> bool:
        """Environments hold their memory while their trajectories wait for other actions, scoring for instance.

        Were all memory theirs, those actions could never start and no environment would ever end.
        """
        if not self.environments[node]:
            return True
        return all(
            self.free[node][resource] - amount >= self.pools[node].capacity[resource] // ENVIRONMENT_HEADROOM
            for resource, amount in environment_part(needed).items()
        )

    def _emptiest_for_environments(self, node: int) -> tuple[int, int, int]:
        return (self.environments[node], -self.free[node].get("memory_mib", 0), node)

    def _take_devices(self, node: int, count: int) -> tuple[int, ...]:
        group = _aligned_group(self.devices[node], count) or ()
        self.devices[node] = [device for device in self.devices[node] if device not in group]
        return group


def _aligned_group(devices: Iterable[int], count: int) -> tuple[int, ...] | None:
    """The first `count` free devices that start at a multiple of `count`; groups stay whole after release."""
    present = set(devices)
    for start in sorted(device for device in present if count and device % count == 0):
        group = tuple(range(start, start + count))
        if present.issuperset(group):
            return group
    return None
