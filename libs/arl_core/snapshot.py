"""What a round may look at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from arl_core.fairness import Shares
from arl_core.model import ActionClass, Pod, Pool, Running, TrajectoryName
from arl_core.waiting import WaitingIndex

__all__ = ["AsDeclared", "Durations", "Snapshot"]


class Durations(Protocol):
    """How long actions are expected to take. Orders and widths follow it, correctness never does."""

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """Of an action of this class with so much of its elastic resource; of any other, `amount` is not looked at."""
        ...


@dataclass(frozen=True, slots=True)
class AsDeclared:
    """Nothing is known but what clients declare: every class takes `prior_s` at its minimum."""

    prior_s: float = 1.0

    def seconds(self, cls: ActionClass, amount: int) -> float:
        elastic = cls.demand.elastic
        if elastic is None:
            return self.prior_s
        return self.prior_s * elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Whoever runs rounds keeps these up to date between them; nothing of it changes during a round."""

    now: float
    waiting: WaitingIndex
    pools: Mapping[int, Pool]
    """By node."""
    running: Mapping[int, Mapping[UUID, Running]] = field(default_factory=dict)
    """Granted and running actions by node, then by id."""
    pods: Mapping[TrajectoryName, Pod] = field(default_factory=dict)
    """Of the living trajectories, where a policy gives them pods."""
    estimates: Durations = field(default_factory=AsDeclared)
    shares: Shares = field(default_factory=Shares)
