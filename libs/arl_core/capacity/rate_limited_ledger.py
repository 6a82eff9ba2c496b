"""A ledger some of whose resources refill with time: calls a second, beside calls at once."""

from collections.abc import Hashable, Mapping

from arl_core.capacity.ledger import ResourceLedger, fits
from arl_core.control.rate_limits import RateLimit, TokenBucket
from arl_core.domain.model import Resources

__all__ = ["RateLimitedLedger"]

_NOTHING: Resources = {}


class _RateState:
    """Of one resource of one node."""

    def __init__(self, bucket: TokenBucket, *, now: float) -> None:
        self.bucket = bucket
        self.visible_tokens = bucket.available(now)
        """As they were when they were last looked at, less what was spent since."""

    def spend(self, amount: int, *, now: float) -> None:
        self.bucket.take(amount, now=now)
        self.visible_tokens -= amount


_NO_RATES: Mapping[str, _RateState] = {}


class RateLimitedLedger(ResourceLedger):
    """Of a resource with a rate takers spend tokens, and give none back. Taking twice spends once.

    Where the node has a capacity of it too, they also hold it as they hold any other: free is the less of both.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """When whatever is taken is spent, by a clock that only goes on."""
        self._rate_states: dict[int, dict[str, _RateState]] = {}
        """By node, of those that have rates: all others are a plain ledger's."""

    def set_rates(self, node: int, rates: Mapping[str, RateLimit]) -> None:
        """All that the node has. What was spent under another rate stays spent; what has no rate now is forgotten."""
        before = self._rate_states.pop(node, _NO_RATES)
        if rates:
            self._rate_states[node] = {name: self._update_rate(before.get(name), rate) for name, rate in rates.items()}

    def refill(self, now: float) -> None:
        """Free is from now on what has come by now. What comes afterwards is not, until this is said again."""
        self.now = now
        for tokens in self._rate_states.values():
            for each in tokens.values():
                each.visible_tokens = each.bucket.available(now)

    def capacity(self, node: int) -> Resources:
        """As much as can be free at once."""
        capacity = dict(super().capacity(node))
        for name, tokens in self._rate_states.get(node, _NO_RATES).items():
            burst = tokens.bucket.rate.burst
            capacity[name] = min(capacity.get(name, burst), burst)
        return capacity

    def available(self, node: int) -> dict[str, int]:
        free = super().available(node)
        for name, tokens in self._rate_states.get(node, _NO_RATES).items():
            free[name] = min(free.get(name, tokens.visible_tokens), tokens.visible_tokens)
        return free

    def available_view(self, node: int) -> Resources:
        """Of a node with rates as it is now: what refills does not go on changing."""
        return self.available(node) if node in self._rate_states else super().available_view(node)

    def available_ignoring_rates(self, node: int) -> dict[str, int]:
        """What would be free, were no tokens spent."""
        return super().available(node)

    def refills_at(self, node: int, resources: Resources) -> float | None:
        """When tokens for these amounts will be there; None where they are, or where something else lacks as well."""
        tokens = self._rate_states.get(node, _NO_RATES)
        lacking = [name for name in tokens if resources.get(name, 0) > tokens[name].visible_tokens]
        if not lacking:
            return None
        not_held = self.available_ignoring_rates(node)
        held = {name: amount for name, amount in resources.items() if name not in tokens or name in not_held}
        if not fits(held, not_held):
            return None
        moment = max(tokens[name].bucket.available_at(resources[name], now=self.now) for name in lacking)
        return moment if moment < float("inf") else None

    def allocate(self, holder: Hashable, node: int, resources: Resources) -> None:
        if node in self._rate_states:
            self._spend_tokens(holder, node, resources)
        # Not by `super`, which costs more than the rest of this: each grant comes by here, whatever its node.
        ResourceLedger.allocate(self, holder, node, resources)

    def _spend_tokens(self, holder: Hashable, node: int, resources: Resources) -> None:
        """What it holds there already is paid for. Nobody runs into debt.

        Who takes more than there is was granted it by another leader, and how long ago those tokens were spent is not
        known: a debt could keep an idle endpoint closed for long, while an empty bucket is right again within a burst.
        """
        held = self._allocations.get(node, {}).get(holder, _NOTHING)
        for name, tokens in self._rate_states[node].items():
            unpaid = resources.get(name, 0) - held.get(name, 0)
            if unpaid > 0:
                tokens.spend(min(unpaid, max(0, tokens.visible_tokens)), now=self.now)

    def _update_rate(self, previous: _RateState | None, rate: RateLimit) -> _RateState:
        if previous is None:
            return _RateState(TokenBucket(rate, now=self.now), now=self.now)
        if previous.bucket.rate == rate:
            return previous
        return _RateState(previous.bucket.with_rate(rate, now=self.now), now=self.now)
