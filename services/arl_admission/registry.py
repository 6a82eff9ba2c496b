"""Reward services that operators register, and what they wish of any. GPU managers read it in their polls."""

import asyncio
from collections.abc import Sequence

from arl_admission import registry_rows
from arl_admission.fleet import Fleet
from arl_store.tx import Store
from arl_wire.actions import SubmitAction
from arl_wire.internal import (
    ChangeServiceWish,
    RegisterServiceWish,
    RemoveServiceAnswer,
    RemoveServiceWish,
    WishAnswer,
)

__all__ = ["Services"]


class Services:
    """`inserting` is held by whoever inserts actions: none is let in that names what is being removed."""

    def __init__(self, store: Store, fleet: Fleet, *, inserting: asyncio.Lock) -> None:
        self._store, self._fleet, self._inserting = store, fleet, inserting

    async def register(self, wish: RegisterServiceWish) -> WishAnswer:
        """Nodes that have its files offer it from their next poll on; its actions wait for one."""
        async with self._store.write() as tx:
            count = await registry_rows.register_service(tx, wish.service)
        self._fleet.read_at = float("-inf")
        return WishAnswer(count=count)

    async def change(self, wish: ChangeServiceWish) -> WishAnswer:
        async with self._store.write() as tx:
            count = await registry_rows.change_service(tx, wish)
        return WishAnswer(count=count)

    async def remove(self, wish: RemoveServiceWish) -> RemoveServiceAnswer:
        """Refused while an action waits for it or is scored by it: none is left without an outcome."""
        async with self._inserting:
            async with self._store.write() as tx:
                removed, unsettled = await registry_rows.remove_service(tx, wish.name)
            if removed:
                self._fleet.forget(wish.name)
        return RemoveServiceAnswer(removed=bool(removed), unsettled=unsettled)

    def removed(self, actions: Sequence[SubmitAction]) -> dict[int, Exception]:
        """Refusals of scores by what was removed since they were looked at: nothing would ever settle them."""
        refusals = {at: self._fleet.refusal(each) for at, each in enumerate(actions) if each.kind == "score"}
        return {at: refusal for at, refusal in refusals.items() if refusal is not None}
