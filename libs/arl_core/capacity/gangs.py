"""Gangs: all actions of a gang start in one round or none does, so two half-placed gangs cannot block each other."""

from collections.abc import Callable, Collection, Mapping, Sequence

from arl_core.capacity.gang_packing import PackingItem, SearchBudget, hardest_first, pack
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.domain.model import Grant, QueuedAction, Resources

__all__ = ["all_members", "allocate_gang", "can_gang_fit", "limit_grants", "placeable_members"]


def all_members(action: QueuedAction) -> list[QueuedAction]:
    """Return the action and its gang members, ordered by id."""
    return sorted((action, *action.gang_members), key=lambda each: each.id)


def _minimum_demand(member: QueuedAction) -> tuple[Resources, Resources]:
    return member.cls.demand.minimum, member.cls.demand.minimum


def allocate_gang(
    fitter: NodeFitter,
    action: QueuedAction,
    demand_of: Callable[[QueuedAction], tuple[Resources, Resources]] = _minimum_demand,
    *,
    budget: SearchBudget | None = None,
) -> list[Grant] | None:
    """Return one grant per gang member; if the gang does not fit, return None and leave the fitter unchanged.

    `demand_of` returns the amounts to grant and the amounts to deduct from the node. `budget` is the search budget of
    the round.
    """
    members = all_members(action)
    asked = [demand_of(member) for member in members]
    classes = {member.cls.variant: (member.cls, needed) for member, (_, needed) in zip(members, asked, strict=True)}
    suiting = {key: tuple(fitter.fitting_nodes(*each)) for key, each in classes.items()}
    demands = [PackingItem(needed, suiting[each.cls.variant]) for each, (_, needed) in zip(members, asked, strict=True)]
    nodes = pack(demands, fitter.available, budget)
    if nodes is None:
        return None
    gang = action.gang.id if action.gang is not None else None
    return [
        fitter.grant_on(node, member, amounts, needed=needed)._replace(gang=gang)
        for node, member, (amounts, needed) in zip(nodes, members, asked, strict=True)
    ]


def placeable_members(
    fitter: NodeFitter,
    action: QueuedAction,
    available: Callable[[int], Resources],
    *,
    budget: SearchBudget | None = None,
) -> list[QueuedAction]:
    """Return the gang members, hardest to place first, if all could start with these `available` amounts.

    Return an empty list if they could not: the scheduler reserves nothing for an impossible placement.
    """
    members = all_members(action)
    amounts = {node: available(node) for node in fitter.schedulable_nodes()}
    classes = {member.cls.variant: member.cls for member in members}
    suiting = {key: tuple(node for node in amounts if fitter.is_suitable(node, cls)) for key, cls in classes.items()}
    demands = [PackingItem(member.cls.demand.minimum, suiting[member.cls.variant]) for member in members]
    if pack(demands, amounts, budget) is None:
        return []
    return [members[at] for at in hardest_first(demands, amounts)]


def can_gang_fit(demands: Sequence[tuple[Resources, Collection[int]]], capacities: Mapping[int, Resources]) -> bool:
    """Return True if nodes of these capacities could run all demands at once, each on one of its own nodes."""
    return pack([PackingItem(amounts, tuple(nodes)) for amounts, nodes in demands], capacities) is not None


def limit_grants(grants: Sequence[Grant], limit: int) -> Sequence[Grant]:
    """Return the first `limit` grants without cutting a gang.

    A gang that would be cut is left for the next round, unless it comes first.
    """
    if len(grants) <= limit or grants[limit].gang is None or grants[limit].gang != grants[limit - 1].gang:
        return grants[:limit]
    gang = grants[limit].gang
    first = next(at for at, grant in enumerate(grants) if grant.gang == gang)
    last = max(at for at, grant in enumerate(grants) if grant.gang == gang)
    return grants[: first or last + 1]
