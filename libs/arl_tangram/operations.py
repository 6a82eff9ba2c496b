"""What the clients do, without I/O: each operation yields requests and pauses, and returns a value.

The sync and the async client drive the same generators, so neither can drift from the other.
"""

import json
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

from arl_core.states import Outcome
from arl_tangram.options import wrong
from arl_wire.actions import (
    Action,
    ActionPage,
    SubmitAction,
    WaitRequest,
    WaitResponse,
)
from arl_wire.environments import CreateEnvironment, Environment, EnvironmentPage, EnvironmentState
from arl_wire.errors import Problem, TangramError, Unavailable, error_from

__all__ = [
    "BATCH",
    "FIRST_PAUSE_S",
    "LONGEST_PAUSE_S",
    "REPLY_MARGIN_S",
    "RETRY_STATUS",
    "WAIT_CHUNK_S",
    "ActionFailed",
    "BatchRefused",
    "Call",
    "Operation",
    "Pause",
    "Reply",
    "WaitTimeout",
    "all_pages",
    "answered",
    "as_id",
    "cancel",
    "create_environment",
    "end_environment",
    "end_trajectory",
    "environment",
    "error_of",
    "expect_ok",
    "fetched_files",
    "get",
    "list_actions",
    "list_environments",
    "run",
    "submit",
    "take_back",
    "wait",
    "wait_any",
]

WAIT_CHUNK_S = 30.0
TURN_S = 1.0
"""Of those that do not fit into one request with the others."""
BATCH = 1000
REPLY_MARGIN_S = 30.0
RETRY_STATUS = frozenset({429, 502, 503, 504})
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class WaitTimeout(TimeoutError):
    """The time to wait is over; the actions go on, and `pending` names them."""

    def __init__(self, pending: Sequence[UUID]) -> None:
        super().__init__(f"{len(pending)} actions have not settled in time; they go on")
        self.pending = tuple(pending)


class BatchRefused(TangramError):
    """Some actions of a batch were refused. `accepted` and `refused` are by index; the accepted ones run."""

    code, status, title = "batch_refused", 422, "Part of the batch was refused"

    def __init__(self, accepted: Mapping[int, UUID], refused: Mapping[int, TangramError]) -> None:
        first = min(refused)
        super().__init__(f"{len(refused)} of {len(refused) + len(accepted)} refused; item {first}: {refused[first]}")
        self.accepted = dict(accepted)
        self.refused = dict(refused)


class ActionFailed(TangramError):
    """An action that had to succeed did not."""

    code, status, title = "action_failed", 409, "The action did not succeed"

    def __init__(self, action: Action) -> None:
        cause = action.message or action.reason or (action.result.stderr.text[-500:] if action.result else "")
        super().__init__(f"action {action.id} settled as {action.outcome}: {cause}".rstrip(": \n"))
        self.action = action


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    path: str
    query: Mapping[str, str | float | int | list[str]] | None = None
    body: BaseModel | None = None
    send_null: bool = False
    """An absent field and null are two things to this call."""
    headers: Mapping[str, str] | None = None
    upload: Path | None = None
    """The body, instead of `body`."""
    download: Path | None = None
    """Where the body of a 2xx answer goes."""
    timeout_s: float = REPLY_MARGIN_S


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """`status` 0 stands for no answer at all; `content` then says why."""

    status: int
    content: bytes
    retry_after_s: float | None = None
    elapsed_s: float = 0.0


Value = TypeVar("Value")
Operation = Generator[Call | Pause, Reply | None, Value]


def submit(action: SubmitAction, *, wait_s: float, patience_s: float, key: str | None = None) -> Operation[Action]:
    """One key for all tries: however often this is sent, there is one action."""
    call = Call(
        method="POST",
        path="/v1/actions",
        query={"wait": wait_s} if wait_s else None,
        body=action,
        headers={"idempotency-key": key or uuid4().hex},
        timeout_s=wait_s + REPLY_MARGIN_S,
    )
    return Action.model_validate_json((yield from answered(call, patience_s)))


def run(
    action: SubmitAction, *, timeout_s: float | None, patience_s: float, key: str | None = None
) -> Operation[Action]:
    """Submit and wait for the outcome."""
    first = _chunk(timeout_s)
    found = yield from submit(action, wait_s=first, patience_s=patience_s, key=key)
    if found.settled_at is not None:
        return found
    left = None if timeout_s is None else timeout_s - first
    return (yield from wait([found.id], timeout_s=left, patience_s=patience_s))[0]


def take_back(action: SubmitAction, *, patience_s: float, key: str) -> Operation[None]:
    """Cancel what was submitted with `key`, whether anybody has heard of its id or not."""
    found = yield from submit(action, wait_s=0, patience_s=patience_s, key=key)
    if found.settled_at is None:
        yield from cancel(found.id, patience_s=patience_s)


def wait(asked: Sequence[UUID | str], *, timeout_s: float | None, patience_s: float) -> Operation[list[Action]]:
    """All of them, in the order asked. Raises `WaitTimeout`, and `NotFound` for an id that is not ours."""
    settled: dict[UUID, Action] = {}
    left, ids = timeout_s, [as_id(id) for id in asked]
    while pending := [id for id in dict.fromkeys(ids) if id not in settled]:
        chunk, asked_at = _chunk(left), time.monotonic()
        answer = yield from _wait_once(pending[:BATCH], until="all", chunk=chunk, patience_s=patience_s)
        settled |= {action.id: action for action in answer.settled}
        if left is not None and answer.pending:
            # Some may only have had no room in the answer, which came at once then.
            left -= min(chunk, time.monotonic() - asked_at) if answer.settled else chunk
            if left <= 0:
                raise WaitTimeout([id for id in pending if id not in settled])
    return [settled[id] for id in ids]


def wait_any(ids: Sequence[UUID], *, timeout_s: float | None, patience_s: float) -> Operation[list[Action]]:
    """At least one of them, settled. More than a request names are all looked at, and then waited for in turns."""
    left = timeout_s
    parts = [ids[at : at + BATCH] for at in range(0, len(ids), BATCH)]
    looks, longest = (len(parts), TURN_S) if len(parts) > 1 else (0, WAIT_CHUNK_S)
    for turn in count():
        chunk = min(_chunk(left), longest) if turn >= looks else 0.0
        part = parts[turn % len(parts)]
        answer = yield from _wait_once(part, until="any", chunk=chunk, patience_s=patience_s)
        if answer.settled:
            return answer.settled
        if left is not None and turn >= looks:
            left -= chunk
            if left <= 0:
                break
    raise WaitTimeout(ids)


def get(id: UUID, *, wait_s: float, patience_s: float) -> Operation[Action]:
    query = {"wait": wait_s} if wait_s else None
    call = Call(method="GET", path=f"/v1/actions/{id}", query=query, timeout_s=wait_s + REPLY_MARGIN_S)
    return Action.model_validate_json((yield from answered(call, patience_s)))


def list_actions(query: Mapping[str, str | int], *, patience_s: float) -> Operation[ActionPage]:
    call = Call(method="GET", path="/v1/actions", query=query)
    return ActionPage.model_validate_json((yield from answered(call, patience_s)))


def cancel(id: UUID, *, patience_s: float) -> Operation[Action]:
    call = Call(method="DELETE", path=f"/v1/actions/{id}")
    return Action.model_validate_json((yield from answered(call, patience_s)))


def end_trajectory(task: str, trajectory: str, *, patience_s: float) -> Operation[None]:
    call = Call(method="DELETE", path=f"/v1/trajectories/{quote(trajectory, safe='')}", query={"task": task})
    yield from answered(call, patience_s)


def create_environment(wanted: CreateEnvironment, *, patience_s: float) -> Operation[Environment]:
    """One key for all tries, and tries until it is made: there is one environment."""
    headers = {"idempotency-key": uuid4().hex}
    while True:
        call = Call(
            method="POST",
            path="/v1/environments",
            query={"wait": WAIT_CHUNK_S},
            body=wanted,
            headers=headers,
            timeout_s=WAIT_CHUNK_S + REPLY_MARGIN_S,
        )
        answer = json.loads((yield from answered(call, patience_s)))
        if "state" in answer and answer["state"] in list(EnvironmentState):
            return Environment.model_validate(answer)


def environment(id: UUID, *, patience_s: float) -> Operation[Environment]:
    call = Call(method="GET", path=f"/v1/environments/{id}")
    return Environment.model_validate_json((yield from answered(call, patience_s)))


def list_environments(query: Mapping[str, str | int], *, patience_s: float) -> Operation[list[Environment]]:
    """Newest first, all pages."""
    return (yield from all_pages("/v1/environments", query, EnvironmentPage, patience_s))


def end_environment(id: UUID, *, patience_s: float) -> Operation[None]:
    yield from answered(Call(method="DELETE", path=f"/v1/environments/{id}"), patience_s)


def fetched_files(action: Action) -> dict[str, bytes]:
    """The files an action was asked to fetch, by path."""
    if action.result is None:
        return {}
    return {path: b64decode(content) for path, content in action.result.files.items()}


def expect_ok(action: Action) -> Action:
    """The action itself, or `ActionFailed` for any other outcome."""
    if action.outcome is not Outcome.OK:
        raise ActionFailed(action)
    return action


def _wait_once(
    ids: Sequence[UUID], *, until: Any, chunk: float, patience_s: float
) -> Generator[Call | Pause, Reply | None, WaitResponse]:
    body = WaitRequest(ids=list(ids), until=until, timeout_s=chunk)
    call = Call(method="POST", path="/v1/actions:wait", body=body, timeout_s=chunk + REPLY_MARGIN_S)
    answer = WaitResponse.model_validate_json((yield from answered(call, patience_s)))
    if answer.unknown:
        raise error_from(
            Problem(title="Not found", status=404, code="not_found", detail=f"unknown actions: {_some(answer.unknown)}")
        )
    return answer


def all_pages(path: str, query: Mapping[str, str | int], page: type[Any], patience_s: float) -> Operation[list[Any]]:
    found: list[Any] = []
    asked: dict[str, str | int] = {**query, "limit": 1000}
    while True:
        read = page.model_validate_json((yield from answered(Call(method="GET", path=path, query=asked), patience_s)))
        found += read.items
        if read.next_cursor is None:
            return found
        asked["cursor"] = read.next_cursor


def answered(call: Call, patience_s: float) -> Generator[Call | Pause, Reply | None, bytes]:
    """The body of a 2xx answer. No answer, and answers that ask to come back, are tried again for `patience_s`."""
    waited, pause = 0.0, FIRST_PAUSE_S
    while True:
        reply = yield call
        if reply is None:
            raise RuntimeError("the driver sent no reply to a call")
        if 200 <= reply.status < 300:
            return reply.content
        if reply.status and reply.status not in RETRY_STATUS:
            raise error_of(reply)
        waited += reply.elapsed_s
        if waited >= patience_s:
            raise error_of(reply)
        seconds = max(pause * random.uniform(0.5, 1.0), reply.retry_after_s or 0.0)
        yield Pause(seconds)
        waited += seconds
        pause = min(pause * 2, LONGEST_PAUSE_S)


def error_of(reply: Reply) -> TangramError:
    if reply.status == 0:
        return Unavailable(f"the gateway does not answer: {reply.content.decode()}")
    try:
        return error_from(Problem.model_validate_json(reply.content), retry_after_s=reply.retry_after_s)
    except ValueError:
        text = reply.content[:200].decode(errors="replace")
        return error_from(
            Problem(title="Error", status=reply.status, code="error", detail=f"HTTP {reply.status}: {text}")
        )


def as_id(given: UUID | str) -> UUID:
    """Of an action. Raises `ValidationFailed` for what is none."""
    try:
        return given if isinstance(given, UUID) else UUID(str(given))
    except ValueError:
        raise wrong("ids", f"{given!r} is no id of an action") from None


def _chunk(left: float | None) -> float:
    return WAIT_CHUNK_S if left is None else max(0.0, min(WAIT_CHUNK_S, left))


def _some(ids: Iterable[UUID]) -> str:
    shown = [str(id) for id in ids]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
