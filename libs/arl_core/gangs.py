"""Gangs: all of their actions start in one round, or none does. So no two of them can block each other half placed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from arl_core.free import FreeAmounts
from arl_core.ledger import fits
from arl_core.model import Amounts, Grant, Waiting, environment_part

__all__ = ["lacks_what_comes_back", "members_of", "take_together", "together_on", "within"]

_CORES = "cpu_milli"


def members_of(action: Waiting) -> list[Waiting]:
    """Itself and those that it stands for, the largest first: what is large is hardest to place."""
    return sorted((action, *action.together), key=lambda each: (-each.cls.demand.minimum.get(_CORES, 0), each.id))


def take_together(
    free: FreeAmounts,
    action: Waiting,
    take: Callable[[Waiting], Grant | None],
    *,
    holds: Callable[[Amounts], Amounts] = lambda amounts: amounts,
) -> list[Grant] | None:
    """A grant for each of its gang, by `take`; or None, and `free` is as it was. A grant of it `holds` what it spent.

    Greedy: of members that are alike it finds room for as many as there is room for.
    """
    grants: list[Grant] = []
    for member in members_of(action):
        grant = take(member)
        if grant is None:
            for made in grants:
                free.give_back(made, holds(made.amounts))
            return None
        grants.append(replace(grant, gang=action.gang.id if action.gang is not None else None))
    return grants


def lacks_what_comes_back(free: FreeAmounts, action: Waiting) -> bool:
    """Whether all of its gang would start now if nothing but environments had anything.

    Memory and disk may be theirs, and they end when somebody else wills; and a node may be gone.
    """
    pools = {
        node: replace(pool, free={**pool.capacity, **environment_part(free.free[node])})
        for node, pool in free.pools.items()
    }
    idle = FreeAmounts.of(pools)
    return take_together(idle, action, lambda each: idle.take(each, each.cls.demand.minimum)) is not None


def together_on(demands: Sequence[tuple[Amounts, Collection[int]]], capacities: Mapping[int, Amounts]) -> bool:
    """Whether nodes of these capacities could ever have all of it at once; each demand on one of its own nodes."""
    free = {node: dict(capacity) for node, capacity in capacities.items()}
    for amounts, nodes in sorted(demands, key=lambda demand: -demand[0].get(_CORES, 0)):
        fitting = [node for node in nodes if fits(amounts, free[node])]
        if not fitting:
            return False
        node = min(fitting, key=lambda each: (free[each].get(_CORES, 0), each))
        free[node] = {name: left - amounts.get(name, 0) for name, left in free[node].items()}
    return True


def within(grants: Sequence[Grant], limit: int) -> Sequence[Grant]:
    """The first so many; a gang that would be cut is left for the next round, unless it is the first."""
    if len(grants) <= limit or grants[limit].gang is None or grants[limit].gang != grants[limit - 1].gang:
        return grants[:limit]
    gang = grants[limit].gang
    first = next(at for at, grant in enumerate(grants) if grant.gang == gang)
    last = max(at for at, grant in enumerate(grants) if grant.gang == gang)
    return grants[: first or last + 1]
