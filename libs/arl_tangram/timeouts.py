"""A total timeout for an operation, which covers its calls, its delays and the waits of the server."""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar
from uuid import UUID

from arl_tangram.operations import (
    WAIT_CHUNK_S,
    Operation,
    RetryDelay,
    SdkRequest,
    SdkResponse,
    WaitTimeout,
    error_from_response,
)
from arl_wire.actions.batches import WaitRequest
from arl_wire.errors import Unavailable
from arl_wire.reward_services.service import ScoreRequest

__all__ = ["CANCEL_TIMEOUT_S", "RESPONSE_GRACE_S", "RETRY_TIMEOUT_S", "deadline", "remaining_s", "with_timeout"]

Value = TypeVar("Value")
RETRY_TIMEOUT_S = 120.0
"""Default of the seconds for which the clients retry a request while services restart."""
CANCEL_TIMEOUT_S = 5.0
"""Seconds for cancelling an action, or discarding an environment, whose submission was interrupted."""
RESPONSE_GRACE_S = 1.0
"""Seconds that a response may arrive late."""


def with_timeout(operation: Operation[Value], timeout_s: float | None) -> Operation[Value]:
    """Limit each call to the remaining time. Raises `Unavailable` if the next retry would come too late.

    Raises `WaitTimeout` instead if the operation waits for an action that exists.
    """
    left_s = inf if timeout_s is None else timeout_s
    reply: SdkResponse | None = None
    waits_for: Sequence[UUID] = ()
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            value: Value = end.value
            return value
        if isinstance(step, RetryDelay):
            if step.seconds >= left_s and waits_for:
                raise WaitTimeout(waits_for)
            if step.seconds >= left_s:
                raise Unavailable(f"no answer within {timeout_s:g} s{_last_error_suffix(reply)}")
            reply = yield step
            left_s -= step.seconds
        else:
            waits_for = step.body.ids if isinstance(step.body, WaitRequest) else ()
            reply = yield _limit_to_remaining(step, max(0.0, left_s))
            left_s -= reply.elapsed_s if reply is not None else 0.0


def _last_error_suffix(reply: SdkResponse | None) -> str:
    return "" if reply is None else f"; the last answer: {error_from_response(reply)}"


def _limit_to_remaining(call: SdkRequest, remaining_s: float) -> SdkRequest:
    """Limit the client's timeout and the time that the server may wait."""
    body, query = call.body, call.query
    if isinstance(body, ScoreRequest):
        body = body.model_copy(update={"within_s": min(body.within_s, remaining_s)})
    elif isinstance(body, WaitRequest):
        body = body.model_copy(update={"timeout_s": min(body.timeout_s, remaining_s)})
    elif query is not None:
        query = {**query, "wait": min(WAIT_CHUNK_S, remaining_s)}
    return replace(call, body=body, query=query, timeout_s=min(call.timeout_s, remaining_s + RESPONSE_GRACE_S))


def deadline(timeout_s: float | None) -> float | None:
    """Return the monotonic time at which a timeout passes; None means never."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def remaining_s(deadline: float | None) -> float | None:
    """Return the seconds until a deadline, at least 0; None means no limit."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
