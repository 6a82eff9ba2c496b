"""Reservations for overdue actions, and backfill by actions that end before the reserved start.

EASY backfilling (Lifka 1995, Tsafrir et al. 2007), with one reservation per node. A backfilled action can delay the
reserved action by at most its own overrun, and overruns do not add up. An action granted after the reservation counts
as ended when it was expected to end. The reserved action starts once two groups have ended: the actions that ran when
the reservation was made, and the last action that was due by then.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable
from uuid import UUID

from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.node_load import LoadCalculator
from arl_core.capacity.running_index import released_amount
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import ActionClass, Grant, QueuedAction, Reservation, Resources, RunningAction
from arl_core.durations.curves import to_units

__all__ = ["MAX_RESERVATIONS", "RoundReservations"]

MAX_RESERVATIONS = 64
"""Maximum number of reservations per round."""
MAX_INFEASIBLE_DEMANDS = 16
"""Infeasible demands remembered for each set of possible nodes."""
MAX_BACKFILL_NODES = 8
"""Maximum number of nodes tried to backfill one action."""
MOVE_THRESHOLD = 0.5
"""Fraction of the current wait below which a reservation moves to another node."""
BACKFILL_QUANTILE = 0.9
"""Quantile of the class's duration at which a backfilled action must have ended."""

_CORES = "cpu_milli"
_PlacementKey = tuple[frozenset[str], float, int | None, bool]


@runtime_checkable
class _QuantileModel(Protocol):
    """A duration model that can return quantiles."""

    def quantile(self, cls: ActionClass, q: float, amount: int) -> float:
        """Return the duration in seconds that a run exceeds with probability 1 - `q`."""


@dataclass(slots=True)
class _ReservedResources:
    action: QueuedAction
    resources: dict[str, int]
    backfill_s: float
    """Run time in seconds up to which actions may backfill; 0 if none may."""


def _placement_key(action: QueuedAction) -> _PlacementKey:
    """Return what determines the possible nodes of an action, apart from amounts."""
    cls, environment = action.cls, action.environment
    node = environment.node if environment is not None else None
    return cls.requires, cls.time_limit_s, node, environment is not None


class RoundReservations:
    """The reservations of one round."""

    def __init__(self, snapshot: CellSnapshot, fitter: NodeFitter, loads: LoadCalculator) -> None:
        self._snapshot, self._fitter, self._loads = snapshot, fitter, loads
        self._previous = dict(snapshot.running.reserved)
        """Previous reservations of actions that this round has not examined yet."""
        self._current: dict[UUID, Reservation] = {}
        self._reserved: dict[int, _ReservedResources] = {}
        """Reserved resources by node."""
        self._max_backfill_s = 0.0
        """Longest run time in seconds for which any backfill is allowed."""
        self._backfill_nodes: list[int] = []
        """Nodes that allow backfill and have cores left."""
        self._infeasible: dict[_PlacementKey, list[Resources]] = {}
        """Demands that no node could fulfil, by placement key."""
        durations = snapshot.curves.durations
        self._quantile_model = durations if isinstance(durations, _QuantileModel) else None
        self._quantiles_s: dict[int, float] = {}
        """Cached quantiles by class, in seconds."""

    def reserve_for(self, action: QueuedAction) -> tuple[int, int] | None:
        """Reserve the action's node; return the node and the milli-cores reserved there.

        The node is the one where the action is expected to fit first. Return None if no node would ever fit, or if
        there are too many reservations.
        """
        if len(self._reserved) >= MAX_RESERVATIONS:
            return None
        before = self._previous.pop(action.id, None)
        if self._is_infeasible(action):
            return None
        first = before.node if before is not None else None
        outside = self._snapshot.running.outside_environments
        nodes = self._fitter.find_reservation_nodes(action, outside=outside, first=first, excluded=self._reserved)
        if not nodes:
            self._remember_infeasible(action)
            return None
        lacking = {node: self._fitter.missing_resources(node, action) for node in nodes}
        waits_s = {node: self._wait_until_available_s(node, lacking[node]) for node in nodes if node != first}
        node = min(waits_s, key=lambda each: (waits_s[each], each), default=nodes[0])
        lent_s = waits_s.get(node, 0.0)
        reservation = Reservation(node, self._snapshot.now)
        if before is not None and before.node in lacking:
            kept_s = self._wait_until_available_s(before.node, lacking[before.node], since=before.since)
            if before.node == node or waits_s[node] >= MOVE_THRESHOLD * kept_s:
                reservation, lent_s = before, kept_s
        self._current[action.id] = reservation
        return reservation.node, self._reserve(reservation.node, action, lent_s)

    def _is_infeasible(self, action: QueuedAction) -> bool:
        """Return True if no node could fulfil a smaller demand earlier in this round."""
        demand = action.cls.demand.minimum
        known = self._infeasible.get(_placement_key(action), ())
        return any(all(demand.get(name, 0) >= amount for name, amount in less.items()) for less in known)

    def _remember_infeasible(self, action: QueuedAction) -> None:
        known = self._infeasible.setdefault(_placement_key(action), [])
        known.append(action.cls.demand.minimum)
        del known[:-MAX_INFEASIBLE_DEMANDS]

    def disable_backfill(self, node: int) -> None:
        """Disable backfill on a node; its reserved action starts as soon as running actions have shrunk."""
        if node in self._backfill_nodes:
            self._backfill_nodes.remove(node)
        self._max_backfill_s = max((self._reserved[each].backfill_s for each in self._backfill_nodes), default=0.0)

    def has_cores(self, milli: int) -> bool:
        """Return True if this many milli-cores may be available for backfill on any node."""
        return any(self._cores_on(node) >= milli for node in self._backfill_nodes)

    def backfill_node_for(self, action: QueuedAction) -> int | None:
        """Return a node on which the action may backfill at its minimum; None if there is none."""
        if not self._backfill_nodes:
            return None
        late_s, pinned = self._upper_run_time_s(action.cls), self._fitter.pinned_node(action)
        if late_s > self._max_backfill_s:
            return None
        nodes = self._backfill_nodes if pinned is None else [pinned] if pinned in self._backfill_nodes else []
        tried = islice((node for node in nodes if late_s <= self._reserved[node].backfill_s), MAX_BACKFILL_NODES)
        return next(
            (node for node in tried if self._fitter.fits_with_reserved(node, action, self._reserved[node].resources)),
            None,
        )

    @contextmanager
    def backfilled(self, node: int) -> Iterator[None]:
        """Release the reserved resources during the block; reserve again what is left afterwards."""
        kept = self._reserved[node]
        self._fitter.release_reserved(node, kept.resources)
        yield
        kept.resources = self._fitter.reserve(node, kept.action)
        if not self._cores_on(node):
            self._backfill_nodes.remove(node)

    def carry_over(self, granted: list[Grant]) -> Mapping[UUID, Reservation]:
        """Return the reservations for the next round: new ones, and those of queued actions that were not examined."""
        gone = {grant.fence.action_id for grant in granted} if self._previous else set()
        before = {id: each for id, each in self._previous.items() if id in self._snapshot.queue and id not in gone}
        return dict(islice((self._current | before).items(), MAX_RESERVATIONS))

    def _reserve(self, node: int, action: QueuedAction, backfill_s: float) -> int:
        amounts = self._fitter.reserve(node, action)
        # An infinite wait means that no known end releases the missing amounts. They may still become free at any
        # moment, so backfill is disabled.
        kept = self._reserved[node] = _ReservedResources(
            action, amounts, backfill_s if backfill_s < float("inf") else 0.0
        )
        if kept.backfill_s > 0 and self._cores_on(node):
            self._backfill_nodes.append(node)
            self._max_backfill_s = max(self._max_backfill_s, kept.backfill_s)
        return amounts.get(_CORES, 0)

    def _cores_on(self, node: int) -> int:
        """Return the milli-cores of the node that are free or reserved."""
        return self._fitter.available[node].get(_CORES, 0) + self._reserved[node].resources.get(_CORES, 0)

    def _wait_until_available_s(self, node: int, missing: Resources, *, since: float | None = None) -> float:
        """Return the seconds until running actions are expected to release these amounts; infinity if they never do.

        An action granted after `since` counts as ended when it was expected to end.
        """
        if since is None:
            waits_s = (
                self._loads.wait_until_available_s(node, name, to_units(name, lacks)) for name, lacks in missing.items()
            )
            return max(waits_s, default=0.0)
        left = dict(missing)
        for rest_s, _, running in sorted(self._remaining_times(node, since)):
            for name in tuple(left):
                left[name] -= released_amount(running, name)
                if left[name] <= 0:
                    del left[name]
            if not left:
                return rest_s
        return float("inf") if left else 0.0

    def _remaining_times(self, node: int, since: float) -> Iterator[tuple[float, UUID, RunningAction]]:
        curves, now = self._snapshot.curves, self._snapshot.now
        for id, each in self._snapshot.running.on_node(node).items():
            if each.granted <= since or each.cls is None:
                yield curves.remaining_s(each), id, each
            else:
                expected_s = each.remaining_work * curves.expected_s(each.cls, each.resources)
                yield max(0.0, expected_s - (now - each.allocated_since)), id, each

    def _upper_run_time_s(self, cls: ActionClass) -> float:
        """Return a run time that the class rarely exceeds at its smallest degree of parallelism."""
        least = self._snapshot.curves.curve_for(cls).options[0]
        if self._quantile_model is None or least.seconds > self._max_backfill_s:
            return least.seconds
        late_s = self._quantiles_s.get(cls.key)
        if late_s is None:
            late_s = max(least.seconds, self._quantile_model.quantile(cls, BACKFILL_QUANTILE, least.amount))
            self._quantiles_s[cls.key] = late_s
        return late_s
