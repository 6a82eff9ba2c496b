"""What runs where, so that a round looks only at nodes on which something happened."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from arl_core.model import ENVIRONMENT_RESOURCES, ActionClass, Amounts, Reservation, Resizable, Running

__all__ = ["RunningIndex", "given_back", "is_resizable"]

_NOTHING: Mapping[UUID, Running] = {}
_NO_AMOUNTS: Amounts = {}
_NO_RESERVATIONS: Mapping[UUID, Reservation] = {}


def is_resizable(cls: ActionClass | None) -> bool:
    """Whether a running action of this class may be given other amounts at all; none of an unknown class may."""
    return cls is not None and cls.resizable is not Resizable.NONE


def given_back(running: Running, resource: str) -> int:
    """How much of it is free when this one ends."""
    return 0 if running.at_home and resource in ENVIRONMENT_RESOURCES else running.amounts.get(resource, 0)


class RunningIndex:
    """Granted and running actions by node. Each id is at most once in it."""

    def __init__(self) -> None:
        self._nodes: dict[int, dict[UUID, Running]] = {}
        self._node_of: dict[UUID, int] = {}
        self._spare: dict[int, int] = {}
        self._outside: dict[int, dict[str, int]] = {}
        self._stirred: set[int] = set()
        self.reserved = _NO_RESERVATIONS
        """What the last round reserved, by action."""

    def __len__(self) -> int:
        return len(self._node_of)

    def on(self, node: int) -> Mapping[UUID, Running]:
        return self._nodes.get(node, _NOTHING)

    def spare(self, node: int) -> int:
        """What those who may be shrunk have there beyond their minimum, in amounts of what they are elastic in."""
        return self._spare.get(node, 0)

    def outside(self, node: int) -> Amounts:
        """Memory and disk that those hold there who run outside of environments: with them it comes back."""
        return self._outside.get(node, _NO_AMOUNTS)

    @property
    def stirred(self) -> frozenset[int]:
        """Nodes on which something began, ended or changed since `calm`."""
        return frozenset(self._stirred)

    def calm(self, *, but: Iterable[int] = (), reserved: Mapping[UUID, Reservation] = _NO_RESERVATIONS) -> None:
        """A round has seen all; the next one is to look at these nodes again, and to keep to these reservations."""
        self._stirred, self.reserved = set(but), reserved

    def add(self, running: Running) -> None:
        """A new one, or new amounts of one that is known."""
        action_id, node = running.fence.action_id, running.node
        if action_id in self._node_of:
            self.discard(action_id)
        if node not in self._nodes:
            self._nodes[node] = {}
        self._nodes[node][action_id] = running
        self._node_of[action_id] = node
        self._stirred.add(node)
        self._count(running, 1)

    def discard(self, action_id: UUID) -> None:
        node = self._node_of.pop(action_id, None)
        if node is not None:
            self._stirred.add(node)
            self._count(self._nodes[node].pop(action_id), -1)

    def _count(self, running: Running, sign: int) -> None:
        if not running.at_home:
            held = self._outside.setdefault(running.node, {})
            for resource in ENVIRONMENT_RESOURCES:
                if amount := running.amounts.get(resource):
                    held[resource] = held.get(resource, 0) + sign * amount
        cls = running.cls
        if cls is None or cls.resizable is not Resizable.ANY or running.amounts is cls.demand.minimum:
            return
        if (elastic := cls.demand.elastic) is not None:
            beyond = running.amounts.get(elastic.resource, 0) - elastic.amounts[0]
            self._spare[running.node] = self._spare.get(running.node, 0) + sign * beyond
