"""The reward services that there are, for those who ask with every request."""

import asyncio
import time
from collections.abc import Sequence

from arl_gateway.rewards import Rewards
from arl_wire.services import RewardService

__all__ = ["Offered"]

KEPT_S = 2.0
MISSED_S = 0.1
"""Between looks for names that are not there."""


class Offered:
    """A list that is at most `KEPT_S` old."""

    def __init__(self, rewards: Rewards) -> None:
        self._rewards = rewards
        self._known: Sequence[RewardService] = ()
        self._looked_at = self._until = 0.0
        self._looking = asyncio.Lock()

    async def services(self, *, with_one: str | None = None) -> Sequence[RewardService]:
        """Looked for anew where the one that is named is not among those that are known."""
        is_known = with_one is None or any(each.name == with_one for each in self._known)
        if time.monotonic() < self._until and (is_known or time.monotonic() < self._looked_at + MISSED_S):
            return self._known
        looked_at = self._looked_at
        async with self._looking:
            if self._looked_at == looked_at:
                self._known = await self._rewards.all()
                self._looked_at = time.monotonic()
                self._until = self._looked_at + KEPT_S
        return self._known
