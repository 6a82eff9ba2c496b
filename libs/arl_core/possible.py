"""What nodes could run were they empty."""

from collections.abc import Sequence

from arl_core.ledger import fits
from arl_core.model import ActionClass, Amounts, Pool, Shape

__all__ = ["Possible"]


class Possible:
    """Asked once of each class; mostly the first node answers, and seldom any node by itself."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._first = pools[0] if pools else None
        self._known: dict[int, bool] = {}
        self._alike: dict[tuple[Shape, frozenset[str]], list[Pool]] | None = None
        """By what they have and enforce; made once the first one does not do."""
        self._most: dict[tuple[Shape, frozenset[str]], Amounts] = {}
        """Of each resource as much as any of those has: what is more fits none of them."""

    def has(self, cls: ActionClass) -> bool:
        """Whether any node has what an action of this class requires, and the capacity for it at its smallest."""
        known = self._known.get(cls.key)
        if known is None:
            known = self._known[cls.key] = self._first_has(cls) or self._any_has(cls)
        return known

    def _first_has(self, cls: ActionClass) -> bool:
        pool = self._first
        if pool is None or pool.shape is not cls.shape or not cls.requires <= pool.enforces:
            return False
        return fits(cls.demand.minimum, pool.capacity)

    def _any_has(self, cls: ActionClass) -> bool:
        if self._alike is None:
            self._alike = self._grouped()
        minimum = cls.demand.minimum
        for key, pools in self._alike.items():
            shape, enforces = key
            may = shape is cls.shape and cls.requires <= enforces and fits(minimum, self._most[key])
            if may and any(fits(minimum, pool.capacity) for pool in pools):
                return True
        return False

    def _grouped(self) -> dict[tuple[Shape, frozenset[str]], list[Pool]]:
        alike: dict[tuple[Shape, frozenset[str]], list[Pool]] = {}
        for pool in self._pools:
            alike.setdefault((pool.shape, pool.enforces), []).append(pool)
        for key, pools in alike.items():
            most: dict[str, int] = {}
            for pool in pools:
                most |= {name: amount for name, amount in pool.capacity.items() if amount > most.get(name, 0)}
            self._most[key] = most
        return alike
