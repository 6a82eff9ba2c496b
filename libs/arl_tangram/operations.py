"""Operations of the clients without I/O: each one yields requests and delays, and returns a value.

The sync and the async client drive the same generators, so both behave alike.
"""

import random
import time
from base64 import b64decode
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid4

from pydantic import BaseModel

from arl_core.domain.states import ActionOutcome
from arl_tangram.options import invalid_field
from arl_wire.actions.action import Action, ActionListResponse, SubmitActionRequest
from arl_wire.actions.batches import WaitRequest, WaitResponse
from arl_wire.actions.explanations import ActionExplanation
from arl_wire.actions.traces import ActionTrace
from arl_wire.errors import ProblemDetails, TangramError, Unavailable, error_from_problem

__all__ = [
    "FIRST_RETRY_DELAY_S",
    "MAX_BATCH_ITEMS",
    "MAX_RETRY_DELAY_S",
    "RESPONSE_MARGIN_S",
    "RETRYABLE_STATUSES",
    "WAIT_CHUNK_S",
    "ActionFailed",
    "BatchRefused",
    "Operation",
    "RetryDelay",
    "SdkRequest",
    "SdkResponse",
    "WaitTimeout",
    "call_with_retry",
    "cancel",
    "cancel_submitted",
    "end_trajectory",
    "error_from_response",
    "expect_ok",
    "explain",
    "fetched_files",
    "get",
    "list_actions",
    "list_all_pages",
    "parse_action_id",
    "query_params",
    "run",
    "submit",
    "trace",
    "wait",
    "wait_any",
]

WAIT_CHUNK_S = 30.0
ROUND_ROBIN_WAIT_S = 1.0
"""Seconds that one request waits if the ids do not fit into a single request."""
MAX_BATCH_ITEMS = 1000
RESPONSE_MARGIN_S = 30.0
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
FIRST_RETRY_DELAY_S = 0.1
MAX_RETRY_DELAY_S = 5.0


class WaitTimeout(TimeoutError):
    """A wait that timed out. The actions continue; `pending` lists them."""

    def __init__(self, pending: Sequence[UUID]) -> None:
        super().__init__(f"{len(pending)} actions have not settled in time. They continue")
        self.pending = tuple(pending)


class BatchRefused(TangramError):
    """Some actions of a batch were refused; the accepted ones run.

    Attributes:
        accepted: Ids of the accepted actions, by index.
        refused: Errors of the others, by index.
        unknown: Indexes of `refused` whose request got no response, so that they may run nevertheless.
    """

    code, status, title = "batch_refused", 422, "Part of the batch was refused"

    def __init__(
        self, accepted: Mapping[int, UUID], refused: Mapping[int, TangramError], *, unknown: Iterable[int] = ()
    ) -> None:
        first = min(refused)
        super().__init__(
            f"{len(refused)} of {len(refused) + len(accepted)} actions were refused. Item {first}: {refused[first]}"
        )
        self.accepted = dict(accepted)
        self.refused = dict(refused)
        self.unknown = frozenset(unknown)


class ActionFailed(TangramError):
    """An action that had to succeed settled with another outcome."""

    code, status, title = "action_failed", 409, "The action did not succeed"

    def __init__(self, action: Action) -> None:
        cause = action.message or action.reason or (action.result.stderr.text[-500:] if action.result else "")
        super().__init__(f"action {action.id} settled as {action.outcome}: {cause}".rstrip(": \n"))
        self.action = action


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkRequest:
    method: str
    path: str
    query: Mapping[str, str | float | int | list[str]] | None = None
    body: BaseModel | None = None
    send_null: bool = False
    """True if the call distinguishes null from an absent field."""
    headers: Mapping[str, str] | None = None
    upload: Path | None = None
    """File to send as the body, instead of `body`."""
    download: Path | None = None
    """File that receives the body of a 2xx response."""
    timeout_s: float = RESPONSE_MARGIN_S


@dataclass(frozen=True, slots=True)
class RetryDelay:
    seconds: float


@dataclass(frozen=True, slots=True)
class SdkResponse:
    """A response. `status` 0 means that there was no response; `content` is then the reason."""

    status: int
    content: bytes
    retry_after_s: float | None = None
    elapsed_s: float = 0.0


Value = TypeVar("Value")
Operation = Generator[SdkRequest | RetryDelay, SdkResponse | None, Value]


def submit(
    action: SubmitActionRequest, *, wait_s: float, retry_timeout_s: float, key: str | None = None
) -> Operation[Action]:
    """Submit an action. All attempts use one idempotency key, so that only one action is created."""
    call = SdkRequest(
        method="POST",
        path="/v1/actions",
        query={"wait": wait_s} if wait_s else None,
        body=action,
        headers={"idempotency-key": key or uuid4().hex},
        timeout_s=wait_s + RESPONSE_MARGIN_S,
    )
    return Action.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def run(
    action: SubmitActionRequest, *, timeout_s: float | None, retry_timeout_s: float, key: str | None = None
) -> Operation[Action]:
    """Submit and wait for the outcome."""
    first = _wait_chunk_s(timeout_s)
    found = yield from submit(action, wait_s=first, retry_timeout_s=retry_timeout_s, key=key)
    if found.settled_at is not None:
        return found
    left = None if timeout_s is None else timeout_s - first
    return (yield from wait([found.id], timeout_s=left, retry_timeout_s=retry_timeout_s))[0]


def cancel_submitted(action: SubmitActionRequest, *, retry_timeout_s: float, key: str) -> Operation[None]:
    """Cancel the action that was submitted with `key`, even if its id never arrived."""
    found = yield from submit(action, wait_s=0, retry_timeout_s=retry_timeout_s, key=key)
    if found.settled_at is None:
        yield from cancel(found.id, retry_timeout_s=retry_timeout_s)


def wait(
    action_ids: Sequence[UUID | str], *, timeout_s: float | None, retry_timeout_s: float
) -> Operation[list[Action]]:
    """Wait for all actions and return them in order. Raises `WaitTimeout`, and `NotFound` for unknown ids."""
    settled: dict[UUID, Action] = {}
    left, ids = timeout_s, [parse_action_id(id) for id in action_ids]
    while pending := [id for id in dict.fromkeys(ids) if id not in settled]:
        chunk, asked_at = _wait_chunk_s(left), time.monotonic()
        answer = yield from _wait_once(
            pending[:MAX_BATCH_ITEMS], until="all", chunk=chunk, retry_timeout_s=retry_timeout_s
        )
        settled |= {action.id: action for action in answer.settled}
        if left is not None and answer.pending:
            # A full response returns at once and leaves settled actions out. Only the elapsed time counts then.
            left -= min(chunk, time.monotonic() - asked_at) if answer.settled else chunk
            if left <= 0:
                raise WaitTimeout([id for id in pending if id not in settled])
    return [settled[id] for id in ids]


def wait_any(ids: Sequence[UUID], *, timeout_s: float | None, retry_timeout_s: float) -> Operation[list[Action]]:
    """Return the actions that settled, at least one. If ids need several requests, they are polled in round-robin."""
    left = timeout_s
    parts = [ids[at : at + MAX_BATCH_ITEMS] for at in range(0, len(ids), MAX_BATCH_ITEMS)]
    looks, longest = (len(parts), ROUND_ROBIN_WAIT_S) if len(parts) > 1 else (0, WAIT_CHUNK_S)
    for turn in count():
        chunk = min(_wait_chunk_s(left), longest) if turn >= looks else 0.0
        part = parts[turn % len(parts)]
        answer = yield from _wait_once(part, until="any", chunk=chunk, retry_timeout_s=retry_timeout_s)
        if answer.settled:
            return answer.settled
        if left is not None and turn >= looks:
            left -= chunk
            if left <= 0:
                break
    raise WaitTimeout(ids)


def get(id: UUID, *, wait_s: float, retry_timeout_s: float) -> Operation[Action]:
    query = {"wait": wait_s} if wait_s else None
    call = SdkRequest(method="GET", path=f"/v1/actions/{id}", query=query, timeout_s=wait_s + RESPONSE_MARGIN_S)
    return Action.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def list_actions(query: Mapping[str, str | int], *, retry_timeout_s: float) -> Operation[ActionListResponse]:
    call = SdkRequest(method="GET", path="/v1/actions", query=query)
    return ActionListResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def cancel(id: UUID, *, retry_timeout_s: float) -> Operation[Action]:
    call = SdkRequest(method="DELETE", path=f"/v1/actions/{id}")
    return Action.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def end_trajectory(task: str, trajectory: str, *, retry_timeout_s: float) -> Operation[None]:
    call = SdkRequest(method="DELETE", path=f"/v1/trajectories/{quote(trajectory, safe='')}", query={"task": task})
    yield from call_with_retry(call, retry_timeout_s)


def fetched_files(action: Action) -> dict[str, bytes]:
    """Return the files that an action fetched, by path."""
    if action.result is None:
        return {}
    return {path: b64decode(content) for path, content in action.result.files.items()}


def expect_ok(action: Action) -> Action:
    """Return the action. Raises `ActionFailed` for any outcome other than `ok`."""
    if action.outcome is not ActionOutcome.OK:
        raise ActionFailed(action)
    return action


def _wait_once(
    ids: Sequence[UUID], *, until: Any, chunk: float, retry_timeout_s: float
) -> Generator[SdkRequest | RetryDelay, SdkResponse | None, WaitResponse]:
    body = WaitRequest(ids=list(ids), until=until, timeout_s=chunk)
    call = SdkRequest(method="POST", path="/v1/actions:wait", body=body, timeout_s=chunk + RESPONSE_MARGIN_S)
    answer = WaitResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))
    if answer.unknown:
        raise error_from_problem(
            ProblemDetails(
                title="Not found",
                status=404,
                code="not_found",
                detail=f"These actions do not exist in your project: {_format_ids(answer.unknown)}",
            )
        )
    return answer


def list_all_pages(
    path: str, query: Mapping[str, str | int], page_type: type[Any], retry_timeout_s: float
) -> Operation[list[Any]]:
    found: list[Any] = []
    asked: dict[str, str | int] = {**query, "limit": 1000}
    while True:
        read = page_type.model_validate_json(
            (yield from call_with_retry(SdkRequest(method="GET", path=path, query=asked), retry_timeout_s))
        )
        found += read.items
        if read.next_cursor is None:
            return found
        asked["cursor"] = read.next_cursor


def call_with_retry(
    call: SdkRequest, retry_timeout_s: float
) -> Generator[SdkRequest | RetryDelay, SdkResponse | None, bytes]:
    """Return the body of a 2xx response. Retry lost connections and retryable statuses for `retry_timeout_s`."""
    waited, pause = 0.0, FIRST_RETRY_DELAY_S
    while True:
        reply = yield call
        if reply is None:
            raise RuntimeError("the driver sent no reply to a request")
        if 200 <= reply.status < 300:
            return reply.content
        if reply.status and reply.status not in RETRYABLE_STATUSES:
            raise error_from_response(reply)
        waited += reply.elapsed_s
        if waited >= retry_timeout_s:
            raise error_from_response(reply)
        seconds = max(pause * random.uniform(0.5, 1.0), reply.retry_after_s or 0.0)
        yield RetryDelay(seconds)
        waited += seconds
        pause = min(pause * 2, MAX_RETRY_DELAY_S)


def error_from_response(reply: SdkResponse) -> TangramError:
    if reply.status == 0:
        return Unavailable(f"the gateway does not answer: {reply.content.decode()}")
    try:
        return error_from_problem(ProblemDetails.model_validate_json(reply.content), retry_after_s=reply.retry_after_s)
    except ValueError:
        text = reply.content[:200].decode(errors="replace")
        return error_from_problem(
            ProblemDetails(title="Error", status=reply.status, code="error", detail=f"HTTP {reply.status}: {text}")
        )


def parse_action_id(value: UUID | str) -> UUID:
    """Parse the id of an action. Raises `ValidationFailed` if it is invalid."""
    try:
        return value if isinstance(value, UUID) else UUID(str(value))
    except ValueError:
        raise invalid_field("ids", f"{value!r} is not an action id (a UUID)") from None


def query_params(**given: str | None) -> dict[str, str | int]:
    """Return the query parameters that are not None."""
    return {name: value for name, value in given.items() if value is not None}


def _wait_chunk_s(remaining_s: float | None) -> float:
    return WAIT_CHUNK_S if remaining_s is None else max(0.0, min(WAIT_CHUNK_S, remaining_s))


def _format_ids(ids: Iterable[UUID]) -> str:
    shown = [str(id) for id in ids]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def trace(id: UUID, *, retry_timeout_s: float) -> Operation[ActionTrace]:
    """Fetch the parts of an action's completion time: queueing delay, attempts and run time."""
    call = SdkRequest(method="GET", path=f"/v1/actions/{id}/trace")
    return ActionTrace.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def explain(id: UUID, *, retry_timeout_s: float) -> Operation[ActionExplanation]:
    """Fetch the reason why an action is queued and when it is expected to start."""
    call = SdkRequest(method="GET", path=f"/v1/actions/{id}/explain")
    return ActionExplanation.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))
