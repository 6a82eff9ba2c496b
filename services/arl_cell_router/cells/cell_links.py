"""All cells of a router: which one serves a request, and requests to several of them at the same time."""

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from arl_cell_router.cells.cell_link import CALL_TIMEOUT_S, RETRY_AFTER_S, CellLink, CellReply
from arl_cell_router.routing.cell_routing import CellRouting, RequestFacts
from arl_wire.errors import CellUnavailable

__all__ = ["CellLinks", "RelayedHead"]


@dataclass(frozen=True, slots=True)
class RelayedHead:
    """The head of a client's request, as it is sent to cells."""

    method: str
    target: str
    """Encoded path with the query."""
    headers: Sequence[tuple[str, str]]


class CellLinks:
    """The links to all cells and the rule that chooses among them."""

    def __init__(self, links: Iterable[CellLink], routing: CellRouting, *, answer_s: float, batch_s: float) -> None:
        """Create the links.

        Lists and ends of trajectories wait `answer_s` seconds for a cell, batches `batch_s` seconds.
        """
        self.links = {link.number: link for link in sorted(links, key=lambda link: link.number)}
        self.routing = routing
        self.answer_s, self.batch_s = answer_s, batch_s
        self._round_robin = itertools.count()
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Open the connections to all cells."""
        for link in self.links.values():
            self._running.push_async_callback(link.stop)
        await asyncio.gather(*(link.start() for link in self.links.values()))

    async def stop(self) -> None:
        """Close all connections."""
        await self._running.aclose()

    @property
    def up(self) -> list[int]:
        """Return the numbers of the cells that answer."""
        return [number for number, link in self.links.items() if link.availability.is_up]

    def choose(self, facts: RequestFacts) -> CellLink:
        """Return the cell of a request. It may be down. Raises the errors of `CellRouting.choose_cell`."""
        number = self.routing.choose_cell(facts)
        return self.links[number] if number is not None else self.next_link()

    def next_link(self) -> CellLink:
        """Return the cells that are up and open in turn. Raises `CellUnavailable` if there is none."""
        up = self.up
        candidates = [number for number in self.routing.open_cells if number in up] or up
        if not candidates:
            raise self.all_down_error()
        return self.links[candidates[next(self._round_robin) % len(candidates)]]

    def all_down_error(self) -> CellUnavailable:
        """Return the error of a request that any cell could have served."""
        problems = "; ".join(f"cell {number}: {link.availability.problem}" for number, link in self.links.items())
        return CellUnavailable(f"no cell answers ({problems})", retry_after_s=RETRY_AFTER_S)

    async def ask(
        self,
        heads: Mapping[int, RelayedHead],
        bodies: Mapping[int, bytes] | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[int, CellReply | CellUnavailable]:
        """Send a request to each of these cells at the same time; return the responses by the number of the cell."""

        async def ask_one(number: int, head: RelayedHead) -> CellReply | CellUnavailable:
            body = bodies.get(number) if bodies is not None else None
            try:
                return await self.links[number].call(head.method, head.target, head.headers, body, timeout_s=timeout_s)
            except CellUnavailable as error:
                return error

        replies = await asyncio.gather(*(ask_one(number, head) for number, head in heads.items()))
        return dict(zip(heads, replies, strict=True))

    async def ask_all(self, head: RelayedHead) -> dict[int, CellReply | CellUnavailable]:
        """Send the same request to all cells, and wait `answer_s` seconds for each."""
        return await self.ask(dict.fromkeys(self.links, head), timeout_s=self.answer_s)
