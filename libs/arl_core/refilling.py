"""A ledger some of whose resources refill with time: calls a second, beside calls at once."""

from collections.abc import Hashable, Mapping

from arl_core.ledger import Ledger, fits
from arl_core.model import Amounts
from arl_core.rate import Rate, TokenBucket

__all__ = ["RefillingLedger"]

_NO_BUCKETS: Mapping[str, TokenBucket] = {}
_NOTHING: Amounts = {}


class RefillingLedger(Ledger):
    """Of a resource with a rate takers spend tokens, and give none back. Taking twice spends once.

    Where the node has a capacity of it too, they also hold it as they hold any other: free is the less of both.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """Whoever runs rounds sets it, by a clock that only goes on. Behind that there is less free, never more."""
        self._buckets: dict[int, dict[str, TokenBucket]] = {}
        """By node, of those that have rates: all others are a plain ledger's."""

    def set_rates(self, node: int, rates: Mapping[str, Rate]) -> None:
        """All that the node has. What was spent under another rate stays spent; with its rate a bucket is forgotten."""
        before = self._buckets.pop(node, _NO_BUCKETS)
        if rates:
            self._buckets[node] = {name: self._bucket(before.get(name), rate) for name, rate in rates.items()}

    def capacity(self, node: int) -> Amounts:
        """As much as can be free at once."""
        capacity = dict(super().capacity(node))
        for name, bucket in self._buckets.get(node, _NO_BUCKETS).items():
            capacity[name] = min(capacity.get(name, bucket.rate.burst), bucket.rate.burst)
        return capacity

    def free(self, node: int) -> dict[str, int]:
        free = super().free(node)
        for name, bucket in self._buckets.get(node, _NO_BUCKETS).items():
            tokens = bucket.free(self.now)
            free[name] = min(free.get(name, tokens), tokens)
        return free

    def left(self, node: int) -> Amounts:
        """Of a node with rates as it is now: what refills does not go on changing."""
        return self.free(node) if node in self._buckets else super().left(node)

    def not_held(self, node: int) -> dict[str, int]:
        """What would be free, were no tokens spent."""
        return super().free(node)

    def refills_at(self, node: int, amounts: Amounts) -> float | None:
        """When tokens will be there for these amounts; None where they are, or would not be enough."""
        buckets = self._buckets.get(node, _NO_BUCKETS)
        lacking = [name for name in buckets if amounts.get(name, 0) > buckets[name].free(self.now)]
        if not lacking:
            return None
        not_held = self.not_held(node)
        held = {name: amount for name, amount in amounts.items() if name not in buckets or name in not_held}
        if not fits(held, not_held):
            return None
        moment = max(buckets[name].free_at(amounts[name], now=self.now) for name in lacking)
        return moment if moment < float("inf") else None

    def take(self, holder: Hashable, node: int, amounts: Amounts) -> None:
        if node in self._buckets:
            self._spend(holder, node, amounts)
        super().take(holder, node, amounts)

    def _spend(self, holder: Hashable, node: int, amounts: Amounts) -> None:
        """What it holds there already is paid for. Nobody runs into debt.

        Who takes more than there is was granted it by another leader, and how long ago those tokens were spent is not
        known: a debt could keep an idle endpoint closed for long, while an empty bucket is right again within a burst.
        """
        held = self._held.get(node, {}).get(holder, _NOTHING)
        for name, bucket in self._buckets[node].items():
            unpaid = amounts.get(name, 0) - held.get(name, 0)
            if unpaid > 0:
                bucket.take(min(unpaid, max(0, bucket.free(self.now))), now=self.now)

    def _bucket(self, known: TokenBucket | None, rate: Rate) -> TokenBucket:
        if known is None:
            return TokenBucket(rate, now=self.now)
        return known if known.rate == rate else known.at(rate, now=self.now)
