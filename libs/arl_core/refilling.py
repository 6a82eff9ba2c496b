"""A ledger some of whose resources refill with time: calls a second, beside calls at once."""

from collections.abc import Hashable, Mapping

from arl_core.ledger import Ledger, fits
from arl_core.model import Amounts
from arl_core.rate import Rate, TokenBucket

__all__ = ["RefillingLedger"]

_NOTHING: Amounts = {}


class _Tokens:
    """Of one resource of one node."""

    def __init__(self, bucket: TokenBucket, *, now: float) -> None:
        self.bucket = bucket
        self.shown = bucket.free(now)
        """As they were when they were last looked at, less what was spent since."""

    def spend(self, amount: int, *, now: float) -> None:
        self.bucket.take(amount, now=now)
        self.shown -= amount


_NO_TOKENS: Mapping[str, _Tokens] = {}


class RefillingLedger(Ledger):
    """Of a resource with a rate takers spend tokens, and give none back. Taking twice spends once.

    Where the node has a capacity of it too, they also hold it as they hold any other: free is the less of both.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """When whatever is taken is spent, by a clock that only goes on."""
        self._tokens: dict[int, dict[str, _Tokens]] = {}
        """By node, of those that have rates: all others are a plain ledger's."""

    def set_rates(self, node: int, rates: Mapping[str, Rate]) -> None:
        """All that the node has. What was spent under another rate stays spent; what has no rate now is forgotten."""
        before = self._tokens.pop(node, _NO_TOKENS)
        if rates:
            self._tokens[node] = {name: self._of_rate(before.get(name), rate) for name, rate in rates.items()}

    def refill(self, now: float) -> None:
        """Free is from now on what has come by now. What comes afterwards is not, until this is said again."""
        self.now = now
        for tokens in self._tokens.values():
            for each in tokens.values():
                each.shown = each.bucket.free(now)

    def capacity(self, node: int) -> Amounts:
        """As much as can be free at once."""
        capacity = dict(super().capacity(node))
        for name, tokens in self._tokens.get(node, _NO_TOKENS).items():
            burst = tokens.bucket.rate.burst
            capacity[name] = min(capacity.get(name, burst), burst)
        return capacity

    def free(self, node: int) -> dict[str, int]:
        free = super().free(node)
        for name, tokens in self._tokens.get(node, _NO_TOKENS).items():
            free[name] = min(free.get(name, tokens.shown), tokens.shown)
        return free

    def left(self, node: int) -> Amounts:
        """Of a node with rates as it is now: what refills does not go on changing."""
        return self.free(node) if node in self._tokens else super().left(node)

    def not_held(self, node: int) -> dict[str, int]:
        """What would be free, were no tokens spent."""
        return super().free(node)

    def refills_at(self, node: int, amounts: Amounts) -> float | None:
        """When tokens for these amounts will be there; None where they are, or where something else lacks as well."""
        tokens = self._tokens.get(node, _NO_TOKENS)
        lacking = [name for name in tokens if amounts.get(name, 0) > tokens[name].shown]
        if not lacking:
            return None
        not_held = self.not_held(node)
        held = {name: amount for name, amount in amounts.items() if name not in tokens or name in not_held}
        if not fits(held, not_held):
            return None
        moment = max(tokens[name].bucket.free_at(amounts[name], now=self.now) for name in lacking)
        return moment if moment < float("inf") else None

    def take(self, holder: Hashable, node: int, amounts: Amounts) -> None:
        if node in self._tokens:
            self._spend(holder, node, amounts)
        # Not by `super`, which costs more than the rest of this: each grant comes by here, whatever its node.
        Ledger.take(self, holder, node, amounts)

    def _spend(self, holder: Hashable, node: int, amounts: Amounts) -> None:
        """What it holds there already is paid for. Nobody runs into debt.

        Who takes more than there is was granted it by another leader, and how long ago those tokens were spent is not
        known: a debt could keep an idle endpoint closed for long, while an empty bucket is right again within a burst.
        """
        held = self._held.get(node, {}).get(holder, _NOTHING)
        for name, tokens in self._tokens[node].items():
            unpaid = amounts.get(name, 0) - held.get(name, 0)
            if unpaid > 0:
                tokens.spend(min(unpaid, max(0, tokens.shown)), now=self.now)

    def _of_rate(self, known: _Tokens | None, rate: Rate) -> _Tokens:
        if known is None:
            return _Tokens(TokenBucket(rate, now=self.now), now=self.now)
        if known.bucket.rate == rate:
            return known
        return _Tokens(known.bucket.at(rate, now=self.now), now=self.now)
