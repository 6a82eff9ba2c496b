"""A ledger in which some resources refill over time: calls per second in addition to concurrent calls."""

from collections.abc import Hashable, Mapping

from arl_core.capacity.ledger import ResourceLedger, fits
from arl_core.control.rate_limits import RateLimit, TokenBucket
from arl_core.domain.model import Resources

__all__ = ["RateLimitedLedger"]

_NOTHING: Resources = {}


class _RateState:
    """The rate state of one resource of one node."""

    def __init__(self, bucket: TokenBucket, *, now: float) -> None:
        self.bucket = bucket
        self.visible_tokens = bucket.available(now)
        """Tokens at the last refill, minus the tokens spent since."""

    def spend(self, amount: int, *, now: float) -> None:
        """Spend tokens now; the visible tokens may become negative."""
        self.bucket.take(amount, now=now)
        self.visible_tokens -= amount


_NO_RATES: Mapping[str, _RateState] = {}


class RateLimitedLedger(ResourceLedger):
    """A ledger with rate-limited resources. Tokens are spent and never released; allocating twice spends once.

    If the node also has a capacity of the resource, an allocation counts against both. The available amount is the
    smaller of the two.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """Time at which allocations spend tokens, from a clock that never goes back."""
        self._rate_states: dict[int, dict[str, _RateState]] = {}
        """Rate states by node, for nodes with rates only; all other nodes behave like a plain ledger."""

    def set_rates(self, node: int, rates: Mapping[str, RateLimit]) -> None:
        """Set all rates of the node.

        Spent tokens stay spent if a rate changes; the state of a removed rate is dropped.
        """
        before = self._rate_states.pop(node, _NO_RATES)
        if rates:
            self._rate_states[node] = {name: self._update_rate(before.get(name), rate) for name, rate in rates.items()}

    def refill(self, now: float) -> None:
        """Update the visible tokens to `now`. Tokens that refill later stay invisible until the next call."""
        self.now = now
        for tokens in self._rate_states.values():
            for each in tokens.values():
                each.visible_tokens = each.bucket.available(now)

    def capacity(self, node: int) -> Resources:
        """Return the largest amounts that can be available at once."""
        capacity = dict(super().capacity(node))
        for name, tokens in self._rate_states.get(node, _NO_RATES).items():
            burst = tokens.bucket.rate.burst
            capacity[name] = min(capacity.get(name, burst), burst)
        return capacity

    def available(self, node: int) -> dict[str, int]:
        """Return capacity minus allocations, and at most the visible tokens of each rate-limited resource."""
        free = super().available(node)
        for name, tokens in self._rate_states.get(node, _NO_RATES).items():
            free[name] = min(free.get(name, tokens.visible_tokens), tokens.visible_tokens)
        return free

    def available_view(self, node: int) -> Resources:
        """Return a live view; for a node with rates, return a copy that does not change when tokens refill."""
        return self.available(node) if node in self._rate_states else super().available_view(node)

    def available_ignoring_rates(self, node: int) -> dict[str, int]:
        """Return what would be available if no tokens were spent."""
        return super().available(node)

    def refills_at(self, node: int, resources: Resources) -> float | None:
        """Return when enough tokens will be there; None if there are enough, or if another resource is missing too."""
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
        """Allocate as the base class does, and spend the tokens of rate-limited resources."""
        if node in self._rate_states:
            self._spend_tokens(holder, node, resources)
        # Called directly: `super()` would cost more than the rest of this method, and every grant runs it.
        ResourceLedger.allocate(self, holder, node, resources)

    def _spend_tokens(self, holder: Hashable, node: int, resources: Resources) -> None:
        """Spend tokens for the amounts that `holder` does not already have, without going into debt.

        If a grant takes more tokens than available, another leader made it, and it is unknown when the tokens were
        spent. A debt could close an idle endpoint for long. An empty bucket is correct again within one burst.
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
