"""Requests whose parts belong to several cells: batches, waits, and the end of a trajectory."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from arl_cell_router.cells.cell_link import CellLink, CellReply
from arl_cell_router.cells.cell_links import CellLinks, RelayedHead
from arl_cell_router.merging.batch_parts import (
    BatchSplit,
    can_split_batch,
    merge_batch,
    merge_wait,
    split_batch,
    split_wait,
)
from arl_cell_router.relaying.relay import forward, reply_response, request_head
from arl_cell_router.relaying.request_body import json_head, read_json, to_json
from arl_cell_router.relaying.responses import json_response, missing_cells, raise_missing
from arl_cell_router.routing.cell_routing import RequestFacts
from arl_cell_router.routing.route_table import RouteMatch
from arl_kit.internal_api import cancel_on_disconnect
from arl_wire.actions.batches import WaitRequest
from arl_wire.errors import CellUnavailable, NotFound, ProblemDetails, TangramError, error_from_problem

__all__ = ["SplitRequests"]

RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 0.25, 4.0
"""Seconds between requests to a cell whose gateway answers that it cannot serve them. They double with each request,
and `Retry-After` can only make them longer."""
RESPONSE_MARGIN_S = 15.0
POLL_TIMEOUT_S = 1.0
"""Seconds for a response that waits for nothing. A slow cell delays a wait for any action by this time."""


class SplitRequests:
    """The handlers of requests that are split by cell."""

    def __init__(self, cells: CellLinks) -> None:
        self._cells = cells

    async def submit_batch(self, request: Request) -> Response:
        """Send each action of a batch to its cell, all at once. Results are in the order of the request.

        All cells get the same `Idempotency-Key`, so that a repetition after an error submits nothing twice. The items
        of a cell that fails get its error; the others are accepted.
        """
        body, value = await read_json(request)
        if not can_split_batch(value):
            return await forward(request, self._cells.next_link(), body=body)
        split = split_batch(value, self._cells.routing, key=request.headers.get("idempotency-key") or None)
        parts = self._assign_free_items(split)
        if len(parts) == 1 and not split.refused:
            return await forward(request, self._cells.links[next(iter(parts))], body=body)
        actions = value["actions"]
        bodies = {
            cell: to_json({**value, "actions": [actions[index] for index in indexes]})
            for cell, indexes in parts.items()
        }
        head = json_head(request_head(request))
        replies = await self._cells.ask(dict.fromkeys(parts, head), bodies, timeout_s=self._cells.batch_s)
        if replies and not any(isinstance(each, CellReply) and each.is_success for each in replies.values()):
            return _first_failure(replies)
        items, refused = _batch_results(replies, parts, split)
        return json_response({"items": merge_batch(len(actions), parts, items, refused)}, 202)

    def _assign_free_items(self, split: BatchSplit) -> dict[int, list[int]]:
        """Return the parts with the items of any cell spread over the cells that are up."""
        parts = {cell: list(indexes) for cell, indexes in split.parts.items() if cell is not None}
        for index in split.parts.get(None, ()):
            try:
                parts.setdefault(self._cells.next_link().number, []).append(index)
            except CellUnavailable as error:
                split.refused[index] = error
        return {cell: sorted(indexes) for cell, indexes in parts.items()}

    async def wait(self, request: Request) -> Response:
        """Wait for actions of several cells. The ids of a cell that does not answer in time are pending."""
        body, value = await read_json(request)
        try:
            asked = WaitRequest.model_validate(value)
            parts, unknown = split_wait([str(id) for id in asked.ids], self._cells.routing)
        except (ValidationError, ValueError):
            return await forward(request, self._cells.next_link(), body=body)
        if len(parts) == 1 and not unknown:
            return await forward(request, self._cells.links[next(iter(parts))], body=body)
        waiting = _CellWaits(self._cells, json_head(request_head(request)), parts, asked)
        replies = await cancel_on_disconnect(request, waiting.run())
        failed = [reply for reply in replies.values() if not reply.is_success]
        if failed:
            return reply_response(failed[0])
        silent = sorted(parts.keys() - replies.keys())
        missing = [cell for cell in silent if waiting.is_over or cell not in self._cells.up]
        if parts and not replies:
            raise_missing(self._cells, missing)
        answers = {cell: reply.json() for cell, reply in replies.items()}
        merged = merge_wait(list(dict.fromkeys(map(str, asked.ids))), answers, parts, unknown)
        return json_response(merged, missing=missing)

    async def end_trajectory(self, request: Request, route: RouteMatch) -> Response:
        """End a trajectory in the cell of its hash, or in the other cells if that one does not know it.

        Another cell has it if the weights were changed, or if its environment is from a snapshot.
        """
        task = request.query_params.get("task")
        if task is None:
            return await forward(request, self._cells.next_link())
        facts = RequestFacts(trajectory=(task, route.params["trajectory"]))
        first, head = self._cells.choose(facts).number, request_head(request)
        replies = await self._cells.ask({first: head}, timeout_s=self._cells.answer_s)
        if missing := missing_cells(replies):
            raise_missing(self._cells, missing, replies)
        if _is_not_found(replies[first]):
            others = [cell for cell in self._cells.links if cell != first]
            replies |= await self._cells.ask(dict.fromkeys(others, head), timeout_s=self._cells.answer_s)
        return self._ended_response(replies)

    async def end_step(self, request: Request) -> Response:
        """End a step in all cells, because each may have trajectories of it. A repetition is harmless."""
        head = request_head(request)
        replies = await self._cells.ask(dict.fromkeys(self._cells.links, head), timeout_s=self._cells.answer_s)
        if missing := missing_cells(replies):
            raise_missing(self._cells, missing, replies)
        return self._ended_response(replies)

    def _ended_response(self, replies: Mapping[int, CellReply | CellUnavailable]) -> Response:
        missing = missing_cells(replies)
        found = [reply for reply in replies.values() if isinstance(reply, CellReply) and not reply.is_missing]
        ended = [reply for reply in found if reply.is_success]
        if ended:
            return json_response(None, ended[0].status, missing=missing)
        refused = [reply for reply in found if not _is_not_found(reply)]
        if missing and not refused:
            raise_missing(self._cells, missing, replies)
        return reply_response((refused or found)[0])


class _CellWaits:
    """One wait in each cell, with a common end."""

    def __init__(
        self, cells: CellLinks, head: RelayedHead, parts: Mapping[int, Sequence[str]], asked: WaitRequest
    ) -> None:
        self._cells, self._head, self._parts = cells, head, parts
        self._until: Literal["any", "all"] = asked.until
        self._ends_at = asyncio.get_running_loop().time() + asked.timeout_s
        self.is_over = True
        """False if the waits ended early, because one action settled and `any` was asked for."""

    async def run(self) -> dict[int, CellReply]:
        """Return the responses of the cells that answered in time."""
        if self._until == "any":
            # All cells are asked for what has settled already. Otherwise a busy cell could always answer first, and the
            # settled actions of the others would never be returned.
            replies = await self._poll()
            if any(map(self._ends_wait, replies.values())) or self._left_s() <= 0:
                self.is_over = self._left_s() <= 0
                return replies
        return await self._wait()

    def _left_s(self) -> float:
        return max(0.0, self._ends_at - asyncio.get_running_loop().time())

    async def _poll(self) -> dict[int, CellReply]:
        """Return the present state of the actions in each cell that answers soon."""
        bodies = {cell: self._body(cell, timeout_s=0.0) for cell in self._parts}
        heads = dict.fromkeys(self._parts, self._head)
        replies = await self._cells.ask(heads, bodies, timeout_s=POLL_TIMEOUT_S)
        return {cell: reply for cell, reply in replies.items() if isinstance(reply, CellReply) and not reply.is_missing}

    async def _wait(self) -> dict[int, CellReply]:
        tasks = {asyncio.create_task(self._wait_in(self._cells.links[cell])): cell for cell in self._parts}
        pending = set(tasks)
        found: dict[int, CellReply] = {}
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                found |= {tasks[task]: reply for task in done if (reply := task.result()) is not None}
                if any(map(self._ends_wait, found.values())):
                    self.is_over = not pending
                    break
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        return found

    def _ends_wait(self, reply: CellReply) -> bool:
        return not reply.is_success or (self._until == "any" and bool(reply.json()["settled"]))

    async def _wait_in(self, link: CellLink) -> CellReply | None:
        """Return the response of a cell, or None if it does not answer in time. A cell that returns is asked again."""
        pause_s = RETRY_PAUSE_S
        while True:
            retry_after_s = 0.0
            if await link.availability.wait_up(self._left_s()):
                left_s = self._left_s()
                body, limit_s = self._body(link.number, timeout_s=left_s), left_s + RESPONSE_MARGIN_S
                try:
                    reply = await link.call("POST", self._head.target, self._head.headers, body, timeout_s=limit_s)
                except CellUnavailable as error:
                    retry_after_s = error.retry_after_s or 0.0
                else:
                    if not reply.is_missing:
                        return reply
                    retry_after_s = reply.retry_after_s
            if self._left_s() <= 0:
                return None
            await asyncio.sleep(min(max(pause_s, retry_after_s), self._left_s()))
            pause_s = min(2 * pause_s, MAX_RETRY_PAUSE_S)

    def _body(self, cell: int, *, timeout_s: float) -> bytes:
        return to_json({"ids": list(self._parts[cell]), "until": self._until, "timeout_s": timeout_s})


def _batch_results(
    replies: Mapping[int, CellReply | CellUnavailable], parts: Mapping[int, Sequence[int]], split: BatchSplit
) -> tuple[dict[int, list[Any]], dict[int, TangramError]]:
    """Return the results of the cells that accepted their part, and the errors of all other items."""
    items: dict[int, list[Any]] = {}
    refused = dict(split.refused)
    for cell, reply in replies.items():
        if isinstance(reply, CellReply) and reply.is_success:
            items[cell] = reply.json()["items"]
        else:
            refused |= dict.fromkeys(parts[cell], reply if isinstance(reply, CellUnavailable) else _error_of(reply))
    return items, refused


def _is_not_found(reply: CellReply | CellUnavailable) -> bool:
    return isinstance(reply, CellReply) and reply.status == NotFound.status


def _first_failure(replies: Mapping[int, CellReply | CellUnavailable]) -> Response:
    for reply in replies.values():
        if isinstance(reply, CellReply):
            return reply_response(reply)
    raise next(error for error in replies.values() if isinstance(error, CellUnavailable))


def _error_of(reply: CellReply) -> TangramError:
    try:
        return error_from_problem(ProblemDetails.model_validate(json.loads(reply.body)))
    except ValueError:
        return CellUnavailable(f"cell {reply.cell} answered with status {reply.status}", retry_after_s=1)
