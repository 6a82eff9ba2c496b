"""A ledger some of whose resources refill with time: calls a second, beside calls at once."""

from collections.abc import Hashable

from arl_core.ledger import Ledger
from arl_core.model import Amounts
from arl_core.rate import Rate, TokenBucket

__all__ = ["RefillingLedger"]


class RefillingLedger(Ledger):
    """Of a resource with a rate takers spend and give nothing back; taking twice spends once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """Whoever runs rounds sets it, by the clock that they go by."""
        self._buckets: dict[tuple[int, str], TokenBucket] = {}
        self._spent: dict[Hashable, tuple[int, Amounts]] = {}

    def set_rate(self, node: int, resource: str, rate: Rate) -> None:
        """Its burst is what the node has of it. The same rate again changes nothing."""
        known = self._buckets.get((node, resource))
        if known is None or known.rate != rate:
            self._buckets[node, resource] = TokenBucket(rate, now=self.now)

    def capacity(self, node: int) -> Amounts:
        return {**super().capacity(node), **{name: bucket.rate.burst for name, bucket in self._of(node).items()}}

    def free(self, node: int) -> dict[str, int]:
        return super().free(node) | {name: bucket.free(self.now) for name, bucket in self._of(node).items()}

    def left(self, node: int) -> Amounts:
        """As it is now: what refills does not go on changing."""
        return self.free(node)

    def refilled_at(self, node: int, amounts: Amounts) -> float:
        """When rates alone would let these amounts be taken."""
        buckets = self._of(node)
        moments = [buckets[name].free_at(amount, now=self.now) for name, amount in amounts.items() if name in buckets]
        return max(moments, default=self.now)

    def take(self, holder: Hashable, node: int, amounts: Amounts) -> None:
        before = self._spent.get(holder)
        super().take(holder, node, {name: n for name, n in amounts.items() if (node, name) not in self._buckets})
        spent = {name: amount for name, amount in amounts.items() if (node, name) in self._buckets}
        known = before[1] if before is not None and before[0] == node else {}
        for name, amount in spent.items():
            self._buckets[node, name].take(max(0, amount - known.get(name, 0)), now=self.now)
        self._spent[holder] = (node, spent)

    def release(self, holder: Hashable) -> bool:
        self._spent.pop(holder, None)
        return super().release(holder)

    def _of(self, node: int) -> dict[str, TokenBucket]:
        return {name: bucket for (at, name), bucket in self._buckets.items() if at == node}
