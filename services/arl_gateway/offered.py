"""The reward services that there are, for those who ask with every request."""

import asyncio
import time
from collections.abc import Sequence

from arl_gateway.rewards import Rewards
from arl_wire.services import RewardService

__all__ = ["Offered"]

KEPT_S = 2.0


class Offered:
    """A list that is at most `KEPT_S` old."""

    def __init__(self, rewards: Rewards) -> None:
        self._rewards = rewards
        self._known: Sequence[RewardService] = ()
        self._until = 0.0
        self._looking = asyncio.Lock()

    async def services(self) -> Sequence[RewardService]:
        if time.monotonic() < self._until:
            return self._known
        async with self._looking:
            if time.monotonic() >= self._until:
                self._known = (await self._rewards.list()).items
                self._until = time.monotonic() + KEPT_S
        return self._known
