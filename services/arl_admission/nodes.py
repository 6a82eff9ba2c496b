"""What is wished of nodes: close, empty, open, remove."""

from collections.abc import Callable

from arl_admission import node_rows
from arl_admission.fleet import Fleet
from arl_store.tx import Store
from arl_wire.internal import WishAnswer
from arl_wire.node_wishes import ChangeNodeWish, RemoveNodeAnswer, RemoveNodeWish

__all__ = ["Nodes"]


class Nodes:
    """`hint` tells the scheduler that so many rows changed."""

    def __init__(self, store: Store, fleet: Fleet, *, hint: Callable[[int], None]) -> None:
        self._store, self._fleet, self._hint = store, fleet, hint

    async def change(self, wish: ChangeNodeWish) -> WishAnswer:
        async with self._store.write() as tx:
            count = await node_rows.change_node(tx, wish)
        self._hint(count)
        return WishAnswer(count=count)

    async def remove(self, wish: RemoveNodeWish) -> RemoveNodeAnswer:
        """Refused while it lives or has something. One that comes back afterwards is a new one."""
        try:
            async with self._store.write() as tx:
                kept_by = await node_rows.remove_node(tx, wish.name)
        except LookupError:
            return RemoveNodeAnswer(removed=False)
        if kept_by is None:
            self._fleet.read_at = float("-inf")
            self._hint(1)
        return RemoveNodeAnswer(removed=kept_by is None, kept_by=kept_by)
