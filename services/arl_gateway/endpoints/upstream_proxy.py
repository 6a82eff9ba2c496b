"""Requests that go through to an endpoint: its API's client has another address and key, and is otherwise as it was."""

import asyncio
import time

from arl_core.domain.states import ActionOutcome
from arl_gateway.actions.service import ActionService, RequestTrace
from arl_gateway.blocking.blocking_actions import BlockingActions
from arl_gateway.endpoints.queries import has_endpoint
from arl_gateway.http.auth import Caller
from arl_store.tx import PostgresStore
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import EndpointUnknown, FieldError, GatewayTimeout, TangramError, TooManyRequests, Unavailable

__all__ = ["UpstreamProxy"]

RETRY_AFTER_S = 5
CACHE_S = 2.0
TIMEOUT_REASONS = frozenset({"endpoint_timeout"})
UNUSABLE_REASONS = TIMEOUT_REASONS | {"endpoint_broke_off"}
REDIRECT_STATUSES = frozenset({301, 302, 303, 305, 307, 308})
NOT_SENT_REASONS = frozenset({"endpoint_throttled", "endpoint_unreachable"})
"""Reasons of an `infra_error` after which whoever asked may ask again, whatever he asked for."""
NO_RETRY_HEADERS = {"x-should-retry": "false"}
"""OpenAI's and Anthropic's clients do not send again what is answered with it; they do after any other 5xx."""


class UpstreamProxy:
    def __init__(self, store: PostgresStore, actions: ActionService) -> None:
        self._store, self._actions, self._blocking = store, actions, BlockingActions(actions)
        self._stopping = asyncio.Event()
        self._known_until: dict[str, float] = {}
        """By endpoint, of those that there are."""

    async def call(self, action: SubmitActionRequest, caller: Caller, trace: RequestTrace) -> Action:
        """The settled action, with what the endpoint answered. Where this is cancelled, so is the action.

        Raises `GatewayTimeout` and `Unavailable` where there is no answer, and what admission refuses with; also an
        endpoint that no living broker has: who submits an action may want to wait for one, who calls an API does not.
        """
        await self._require_endpoint(action.endpoint or "")
        try:
            admission = self._actions.admit(action, caller, trace=trace)
            settled = await self._blocking.wait_settled_or_stopped(self._stopping, admission, caller)
        except TooManyRequests as error:
            # A 429 is the endpoint's here: its clients have rules of their own for that.
            raise Unavailable(error.detail, retry_after_s=error.retry_after_s) from error
        if settled is None:
            raise _no_response_error(action, "this gateway is about to end, and whether it was sent is not known")
        return _require_response(settled, action)

    async def _require_endpoint(self, endpoint: str) -> None:
        """One look is good for all that ask in the next seconds."""
        if time.monotonic() < self._known_until.get(endpoint, 0.0):
            return
        async with self._store.read() as tx:
            is_there = await has_endpoint(tx, endpoint)
        if not is_there:
            message = f"no broker that lives has {endpoint!r}; TANGRAM_ENDPOINTS names them"
            raise EndpointUnknown(message, errors=[FieldError(field="endpoint", message=message)])
        self._known_until[endpoint] = time.monotonic() + CACHE_S

    def stop(self) -> None:
        """Who waits is told so."""
        self._stopping.set()

    async def drain(self) -> None:
        """What is left is cancelled."""
        self.stop()
        await self._blocking.drain()


def _require_response(settled: Action, action: SubmitActionRequest) -> Action:
    """What was answered to a try before the last says nothing of that one, and a redirection leads nowhere."""
    response = settled.result.response if settled.result is not None else None
    if response is not None and response.status in REDIRECT_STATUSES:
        said = f"the endpoint answered {response.status} and another address; only its operator can change that"
        raise _no_response_error(action, said)
    if response is not None and settled.reason not in UNUSABLE_REASONS:
        return settled
    why = f"{settled.reason or settled.outcome}: {settled.message or 'no answer'}"
    if settled.outcome is ActionOutcome.DEADLINE_IN_QUEUE:
        raise GatewayTimeout(why)
    if settled.reason in NOT_SENT_REASONS:
        raise Unavailable(why, retry_after_s=RETRY_AFTER_S)
    raise _no_response_error(action, why, timed_out=settled.reason in TIMEOUT_REASONS)


def _no_response_error(action: SubmitActionRequest, detail: str, *, timed_out: bool = False) -> TangramError:
    """Of what may have been carried out: a client is not to repeat what does harm when it is done twice."""
    error = GatewayTimeout(detail) if timed_out else Unavailable(detail)
    if action.request is not None and not (action.request.is_idempotent or action.idempotent):
        error.headers |= NO_RETRY_HEADERS
    else:
        error.retry_after_s = RETRY_AFTER_S
    return error
