"""Places for several demands at once: a node for each of them, so that all have room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from arl_core.fairness import dominant_share, total_amounts
from arl_core.ledger import fits
from arl_core.model import Amounts

__all__ = ["LOOKS", "Demanded", "Looks", "hardest_first", "placed"]

LOOKS = 5_000
"""At places, after the first that did not do: beyond that there is none. What is found first is nearly always right."""
OF_A_ROUND, AT_MOST, AT_LEAST = 20_000, 0.25, 10
"""Of all searches of a round together; the part of what is left that one may have; and what each has in any case."""


@dataclass(slots=True)
class Looks:
    """What searches may have after their first choices did not do, shared by those of a round."""

    left: int = OF_A_ROUND

    def of_one(self) -> int:
        """Of the search that comes next."""
        return max(AT_LEAST, min(LOOKS, int(AT_MOST * self.left)))


@dataclass(frozen=True, slots=True)
class Demanded:
    amounts: Amounts
    nodes: tuple[int, ...]
    """That suit it, whatever they have free."""


def placed(demands: Sequence[Demanded], free: Mapping[int, Amounts], looks: Looks | None = None) -> list[int] | None:
    """The node of each, in their order; None where there are none.

    Those that fewest nodes suit choose first, and the larger before the smaller; each takes the node that has least of
    what any of them needs. Where that leads nowhere other nodes are tried, within limits. Demands that are all alike
    are always placed if that is possible.

    `looks`: where others search as well; without, it has `LOOKS`.
    """
    groups = _groups(demands, free)
    search = _Search(groups, free, looks.of_one() if looks is not None else LOOKS)
    is_placed = search.place_from(0)
    if looks is not None:
        looks.left -= search.in_vain
    if not is_placed:
        return None
    nodes: dict[int, int] = {}
    for group, chosen in zip(groups, search.chosen, strict=True):
        nodes |= zip(group.at, chosen, strict=True)
    return [nodes[at] for at in range(len(demands))]


def hardest_first(demands: Sequence[Demanded], free: Mapping[int, Amounts]) -> list[int]:
    """Their places in `demands`, in the order in which they choose."""
    return [at for group in _groups(demands, free) for at in group.at]


@dataclass(slots=True)
class _Alike:
    """Demands for the same on the same nodes."""

    amounts: Amounts
    nodes: Sequence[int]
    """Those that have room for one."""
    at: list[int] = field(default_factory=list)


def _groups(demands: Sequence[Demanded], free: Mapping[int, Amounts]) -> list[_Alike]:
    found: dict[tuple[tuple[tuple[str, int], ...], tuple[int, ...]], _Alike] = {}
    for at, each in enumerate(demands):
        key = (tuple(sorted(each.amounts.items())), each.nodes)
        if key not in found:
            found[key] = _Alike(each.amounts, [node for node in each.nodes if fits(each.amounts, free[node])])
        found[key].at.append(at)
    total = total_amounts(free.values())
    return sorted(
        found.values(), key=lambda group: (len(group.nodes), -dominant_share(group.amounts, total), group.at[0])
    )


class _Search:
    """Depth first. Alike ones take nodes in one order, so that no choice is made twice."""

    def __init__(self, groups: Sequence[_Alike], free: Mapping[int, Amounts], looks: int) -> None:
        self._groups = groups
        self._more = looks
        self._free = {node: dict(free[node]) for group in groups for node in group.nodes}
        total = total_amounts(self._free.values())
        self._total = {name: total.get(name) or 1 for group in groups for name in group.amounts}
        self._kept = {node: self._kept_by(node) for node in self._free}
        """How much a node has of all that any of them needs, against what there is."""
        self._suiting = [frozenset(group.nodes) for group in groups]
        self._looks = 0
        self._most: int | None = None
        """Looks, once a place had to be taken back: `looks` more than there were by then."""
        self.chosen: list[list[int]] = [[] for _ in groups]

    @property
    def in_vain(self) -> int:
        """Looks since a place had to be taken back."""
        return 0 if self._most is None else self._looks - (self._most - self._more)

    def place_from(self, number: int) -> bool:
        """The groups from this one on."""
        if number == len(self._groups):
            return True
        amounts = self._groups[number].amounts
        nodes = [node for node in self._groups[number].nodes if fits(amounts, self._free[node])]
        self._looks += len(nodes)
        return self._fill(number, sorted(nodes, key=lambda node: (self._kept[node], node)), 0)

    def _fill(self, number: int, nodes: Sequence[int], first: int) -> bool:
        """What is left of a group, on these nodes from the `first` on, and then the next groups."""
        group, chosen = self._groups[number], self.chosen[number]
        if len(chosen) == len(group.at):
            return self.place_from(number + 1)
        tried: list[int] = []
        for place in range(first, len(nodes)):
            node, self._looks = nodes[place], self._looks + 1
            if not fits(group.amounts, self._free[node]) or any(self._is_same(node, other) for other in tried):
                continue
            self._spend(node, group.amounts, 1)
            chosen.append(node)
            if self._fill(number, nodes, place):
                return True
            chosen.pop()
            self._spend(node, group.amounts, -1)
            self._most = self._most or self._looks + self._more
            if self._looks >= self._most or number == len(self._groups) - 1:
                return False
            tried.append(node)
        return False

    def _spend(self, node: int, amounts: Amounts, times: int) -> None:
        for name, amount in amounts.items():
            if amount:
                self._free[node][name] -= times * amount
        self._kept[node] = self._kept_by(node)

    def _kept_by(self, node: int) -> float:
        free = self._free[node]
        return sum(free.get(name, 0) / whole for name, whole in self._total.items())

    def _is_same(self, node: int, other: int) -> bool:
        if self._free[node] != self._free[other]:
            return False
        return all((node in suiting) == (other in suiting) for suiting in self._suiting)
