"""Placement of several demands at once: one node for each demand, so that all of them fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from arl_core.capacity.ledger import fits
from arl_core.domain.model import Resources
from arl_core.queue.fairness import dominant_share, total_resources

__all__ = ["SEARCH_LIMIT", "PackingItem", "SearchBudget", "hardest_first", "pack"]

SEARCH_LIMIT = 5_000
"""Search steps after the first failed choice; a longer search is given up. The first choice nearly always succeeds."""
ROUND_SEARCH_BUDGET, MAX_SEARCH_FRACTION, MIN_SEARCH_STEPS = 20_000, 0.25, 10
"""Search steps of a round; largest fraction of the rest that one search may use; minimum steps per search."""


@dataclass(slots=True)
class SearchBudget:
    """The search steps that all searches of a round share. Steps before the first failed choice are free."""

    remaining: int = ROUND_SEARCH_BUDGET

    def next_limit(self) -> int:
        """Return the step limit of the next search."""
        return max(MIN_SEARCH_STEPS, min(SEARCH_LIMIT, int(MAX_SEARCH_FRACTION * self.remaining)))


@dataclass(frozen=True, slots=True)
class PackingItem:
    """A demand and the nodes that could run it."""

    resources: Resources
    nodes: tuple[int, ...]
    """Suitable nodes, regardless of their free amounts."""


def pack(
    items: Sequence[PackingItem], available: Mapping[int, Resources], budget: SearchBudget | None = None
) -> list[int] | None:
    """Return the node of each item, in the order of the items; None if no placement is found.

    Items with the fewest suitable nodes are placed first, larger items before smaller ones. Each item gets the node
    with the least free amounts of the needed resources. If a choice leads to a dead end, other nodes are tried within
    limits. Identical items are always placed if a placement exists.

    `budget` is shared with other searches; without it, the limit is `SEARCH_LIMIT`.
    """
    groups = _group_equivalent(items, available)
    search = _PackingSearch(groups, available, budget.next_limit() if budget is not None else SEARCH_LIMIT)
    is_placed = search.place_groups(0)
    if budget is not None:
        budget.remaining -= search.wasted_steps
    if not is_placed:
        return None
    nodes: dict[int, int] = {}
    for group, chosen in zip(groups, search.chosen, strict=True):
        nodes |= zip(group.indices, chosen, strict=True)
    return [nodes[at] for at in range(len(items))]


def hardest_first(items: Sequence[PackingItem], available: Mapping[int, Resources]) -> list[int]:
    """Return the indices of the items in the order in which they are placed."""
    return [at for group in _group_equivalent(items, available) for at in group.indices]


@dataclass(slots=True)
class _EquivalentItems:
    """A group of items with the same demand and the same suitable nodes."""

    resources: Resources
    nodes: Sequence[int]
    """Nodes with enough free resources for one item."""
    indices: list[int] = field(default_factory=list)


def _group_equivalent(items: Sequence[PackingItem], available: Mapping[int, Resources]) -> list[_EquivalentItems]:
    found: dict[tuple[tuple[tuple[str, int], ...], tuple[int, ...]], _EquivalentItems] = {}
    for at, each in enumerate(items):
        key = (tuple(sorted(each.resources.items())), each.nodes)
        if key not in found:
            found[key] = _EquivalentItems(
                each.resources, [node for node in each.nodes if fits(each.resources, available[node])]
            )
        found[key].indices.append(at)
    total = total_resources(available.values())
    return sorted(
        found.values(), key=lambda group: (len(group.nodes), -dominant_share(group.resources, total), group.indices[0])
    )


class _PackingSearch:
    """A depth-first search. Equivalent items take nodes in a fixed order, so no combination is tried twice."""

    def __init__(self, groups: Sequence[_EquivalentItems], available: Mapping[int, Resources], limit: int) -> None:
        self._groups = groups
        self._limit = limit
        self._available = {node: dict(available[node]) for group in groups for node in group.nodes}
        total = total_resources(self._available.values())
        self._total = {name: total.get(name) or 1 for group in groups for name in group.resources}
        self._available_fraction = {node: self._compute_fraction(node) for node in self._available}
        """Sum over the needed resources of a node's free amount divided by the total of all nodes."""
        self._suitable_nodes = [frozenset(group.nodes) for group in groups]
        self._steps = 0
        self._step_limit: int | None = None
        """Step count at which the search gives up; set at the first backtrack to the steps so far plus the limit."""
        self.chosen: list[list[int]] = [[] for _ in groups]

    @property
    def wasted_steps(self) -> int:
        """Return the number of search steps since the first backtrack."""
        return 0 if self._step_limit is None else self._steps - (self._step_limit - self._limit)

    def place_groups(self, number: int) -> bool:
        """Place this group and all later groups; return True on success."""
        if number == len(self._groups):
            return True
        amounts = self._groups[number].resources
        nodes = [node for node in self._groups[number].nodes if fits(amounts, self._available[node])]
        self._steps += len(nodes)
        return self._fill_group(number, sorted(nodes, key=lambda node: (self._available_fraction[node], node)), 0)

    def _fill_group(self, number: int, nodes: Sequence[int], first: int) -> bool:
        """Place the rest of a group on the nodes from index `first` on, then the later groups."""
        group, chosen = self._groups[number], self.chosen[number]
        if len(chosen) == len(group.indices):
            return self.place_groups(number + 1)
        tried: list[int] = []
        for place in range(first, len(nodes)):
            node, self._steps = nodes[place], self._steps + 1
            if not fits(group.resources, self._available[node]) or any(
                self._is_equivalent(node, other) for other in tried
            ):
                continue
            self._deduct(node, group.resources, 1)
            chosen.append(node)
            if self._fill_group(number, nodes, place):
                return True
            chosen.pop()
            self._deduct(node, group.resources, -1)
            self._step_limit = self._step_limit or self._steps + self._limit
            if self._steps >= self._step_limit or number == len(self._groups) - 1:
                return False
            tried.append(node)
        return False

    def _deduct(self, node: int, resources: Resources, times: int) -> None:
        for name, amount in resources.items():
            if amount:
                self._available[node][name] -= times * amount
        self._available_fraction[node] = self._compute_fraction(node)

    def _compute_fraction(self, node: int) -> float:
        free = self._available[node]
        return sum(free.get(name, 0) / whole for name, whole in self._total.items())

    def _is_equivalent(self, node: int, other: int) -> bool:
        if self._available[node] != self._available[other]:
            return False
        return all((node in suiting) == (other in suiting) for suiting in self._suitable_nodes)
