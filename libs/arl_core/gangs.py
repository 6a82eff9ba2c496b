"""Gangs: all of their actions start in one round, or none does. So no two of them can block each other half placed."""

from collections.abc import Callable, Collection, Mapping, Sequence

from arl_core.free import FreeAmounts
from arl_core.model import Amounts, Grant, Waiting
from arl_core.places import Demanded, Looks, hardest_first, placed

__all__ = ["members_of", "take_together", "together_if", "together_on", "within"]


def members_of(action: Waiting) -> list[Waiting]:
    """Itself and those that it stands for, in a fixed order."""
    return sorted((action, *action.together), key=lambda each: each.id)


def _smallest(member: Waiting) -> tuple[Amounts, Amounts]:
    return member.cls.demand.minimum, member.cls.demand.minimum


def take_together(
    free: FreeAmounts,
    action: Waiting,
    asks: Callable[[Waiting], tuple[Amounts, Amounts]] = _smallest,
    *,
    looks: Looks | None = None,
) -> list[Grant] | None:
    """A grant for each of `members_of` it; or None, and `free` is as it was.

    Each is granted the first of what it `asks`, and spends the second. `looks` are those of the round.
    """
    members = members_of(action)
    asked = [asks(member) for member in members]
    classes = {member.cls.key: (member.cls, needed) for member, (_, needed) in zip(members, asked, strict=True)}
    suiting = {key: tuple(free.nodes_for(*each)) for key, each in classes.items()}
    demands = [Demanded(needed, suiting[each.cls.key]) for each, (_, needed) in zip(members, asked, strict=True)]
    nodes = placed(demands, free.free, looks)
    if nodes is None:
        return None
    gang = action.gang.id if action.gang is not None else None
    return [
        free.grant_on(node, member, amounts, needed=needed)._replace(gang=gang)
        for node, member, (amounts, needed) in zip(nodes, members, asked, strict=True)
    ]


def together_if(
    free: FreeAmounts, action: Waiting, available: Callable[[int], Amounts], *, looks: Looks | None = None
) -> list[Waiting]:
    """Its members, the hardest to place first, if all would start now were so much `available` on the open nodes.

    Else nobody: what can't be is not waited for.
    """
    members = members_of(action)
    amounts = {node: available(node) for node in free.open_nodes()}
    classes = {member.cls.key: member.cls for member in members}
    suiting = {key: tuple(node for node in amounts if free.suits(node, cls)) for key, cls in classes.items()}
    demands = [Demanded(member.cls.demand.minimum, suiting[member.cls.key]) for member in members]
    if placed(demands, amounts, looks) is None:
        return []
    return [members[at] for at in hardest_first(demands, amounts)]


def together_on(demands: Sequence[tuple[Amounts, Collection[int]]], capacities: Mapping[int, Amounts]) -> bool:
    """Whether nodes of these capacities could ever have all of it at once; each demand on one of its own nodes."""
    return placed([Demanded(amounts, tuple(nodes)) for amounts, nodes in demands], capacities) is not None


def within(grants: Sequence[Grant], limit: int) -> Sequence[Grant]:
    """The first so many; a gang that would be cut is left for the next round, unless it is the first."""
    if len(grants) <= limit or grants[limit].gang is None or grants[limit].gang != grants[limit - 1].gang:
        return grants[:limit]
    gang = grants[limit].gang
    first = next(at for at, grant in enumerate(grants) if grant.gang == gang)
    last = max(at for at, grant in enumerate(grants) if grant.gang == gang)
    return grants[: first or last + 1]
