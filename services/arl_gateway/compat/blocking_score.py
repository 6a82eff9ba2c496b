"""Common parts of the compatible routes: block until the scores exist, and return errors that the clients understand.

A policy's output must not stop its trainer. Characters that are invalid here are replaced before parsing. If the
request sets `unscored`, texts that cannot be scored get that number.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response

from arl_gateway.compat.target import RewardTarget
from arl_gateway.deps import gateway_deps
from arl_gateway.http.auth import Caller
from arl_gateway.http.dependencies import WriterRoute, request_trace
from arl_gateway.reward_services.score_coalescer import ScoreCoalescer, ScoreSlice, ScoreSubmission, split_items
from arl_kit.internal_api import cancel_on_disconnect
from arl_wire.errors import TooManyRequests, Unavailable
from arl_wire.reward_services.kinds import UNBATCHED_KINDS
from arl_wire.scores import TEXT_ERROR_CODES, Score, ScoreItem

__all__ = ["CompatRoute", "json_response", "score_and_wait"]

RETRY_AFTER_S = 5
ACTION_HEADER = "tangram-action"
"""Header with the id of the action that scored the items and the index of the first of them."""
TRUNCATED_HEADER = "tangram-truncated"
"""Header with the indexes of entries whose texts were truncated, in the order of the request."""
UNSCORED_HEADER = "tangram-unscored"
"""Header with the indexes of entries that got the request's `unscored` number instead of a score."""
MAX_HEADER_ENTRIES = 50
"""Maximum number of entries in a header, which must stay short."""
_INVALID_CHARACTER = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""A surrogate pair, NUL, or a lone surrogate. If its backslash is itself escaped, the match is plain text."""
OFFLOAD_BYTES = 1 << 20
"""Bodies above this size in bytes are rewritten in a thread, so that other requests are not delayed."""


class CompatRoute(WriterRoute):
    """A route that returns 503 instead of 429. Clients of these protocols retry after a 503 and fail on a 4xx."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler; it converts 429 to 503."""
        handle = super().get_route_handler()

        async def handle_patiently(request: Request) -> Response:
            """Handle the request and convert 429 to 503."""
            try:
                return await handle(request)
            except TooManyRequests as error:
                raise Unavailable(error.detail, retry_after_s=error.retry_after_s) from error

        return handle_patiently

    @staticmethod
    async def prepare_body(content: bytes) -> bytes:
        """Replace characters that JSON can express and text cannot contain with U+FFFD.

        Tokenizers produce such characters from incomplete byte sequences.
        """
        if _INVALID_CHARACTER.search(content) is None:
            return content
        return (
            await asyncio.to_thread(_replace_invalid, content)
            if len(content) > OFFLOAD_BYTES
            else _replace_invalid(content)
        )


def _replace_invalid(content: bytes) -> bytes:
    return _INVALID_CHARACTER.sub(_replacement_for, content)


def _replacement_for(found: re.Match[bytes]) -> bytes:
    text, before = found[0], found.start()
    while before > 0 and found.string[before - 1] == ord("\\"):
        before -= 1
    if (found.start() - before) % 2:  # the backslash is escaped, so its six characters are plain text
        return text[:6] + (rb"\ufffd" if len(text) > 6 else b"")
    return text if len(text) > 6 else rb"\ufffd"


async def score_and_wait(
    items: Sequence[ScoreItem],
    target: RewardTarget,
    caller: Caller,
    request: Request,
    response: Response,
    *,
    within_s: float,
) -> Sequence[Score]:
    """Return the entries in order, scored by as many actions as needed.

    Raises `Unavailable` if an item was not scored in time. If the request sets `unscored`, texts that cannot be scored
    get that number.
    """
    if not target.service.is_anywhere:
        raise Unavailable(
            f"no node has reward service {target.service.name!r} yet; try again", retry_after_s=RETRY_AFTER_S
        )
    scores: ScoreCoalescer = gateway_deps(request).scores
    trace = request_trace(request)
    asks = [_submission_for(part, target, within_s) for part in split_items(items)]
    if not asks:
        return []
    scored = await cancel_on_disconnect(request, _run_all([scores.score(ask, caller, trace) for ask in asks]))
    response.headers[ACTION_HEADER] = f"{scored[0].action};first={scored[0].first}"
    entries = [entry for each in scored for entry in each.entries]
    _set_index_header(response, TRUNCATED_HEADER, [at for at, entry in enumerate(entries) if entry.truncated])
    if target.unscored is None:
        return entries
    without = [
        at for at, entry in enumerate(entries) if entry.error is not None and entry.error.code in TEXT_ERROR_CODES
    ]
    _set_index_header(response, UNSCORED_HEADER, without)
    given = {"score": target.unscored}
    return [entry.model_copy(update=given) if at in without else entry for at, entry in enumerate(entries)]


def _set_index_header(response: Response, name: str, entries: Sequence[int]) -> None:
    if entries:
        response.headers[name] = ",".join(map(str, entries[:MAX_HEADER_ENTRIES]))


async def _run_all(scoring: Sequence[Coroutine[Any, Any, ScoreSlice]]) -> Sequence[ScoreSlice]:
    """Run all. If one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in scoring]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _submission_for(items: Sequence[ScoreItem], target: RewardTarget, within_s: float) -> ScoreSubmission:
    return ScoreSubmission(
        service=target.service.name,
        items=items,
        task=target.task,
        trajectory=target.trajectory,
        step=target.step,
        within_s=within_s,
        unbatched=target.service.kind in UNBATCHED_KINDS,
    )


def json_response(content: Any, response: Response) -> Response:
    """Return a JSON response with the given response's headers."""
    return Response(json.dumps(content), headers=dict(response.headers), media_type="application/json")
