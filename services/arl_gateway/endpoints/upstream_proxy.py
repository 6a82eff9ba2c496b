"""Reverse proxy for external APIs. Existing clients change only base URL and key."""

import asyncio
import time

from arl_core.domain.states import ActionOutcome
from arl_gateway.actions.service import ActionService, RequestTrace
from arl_gateway.blocking.blocking_actions import BlockingActions
from arl_gateway.endpoints.queries import has_endpoint
from arl_gateway.http.auth import Caller
from arl_store.tx import PostgresStore
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import EndpointNotFound, FieldError, GatewayTimeout, TangramError, TooManyRequests, Unavailable

__all__ = ["UpstreamProxy"]

RETRY_AFTER_S = 5
CACHE_S = 2.0
TIMEOUT_REASONS = frozenset({"endpoint_timeout"})
UNUSABLE_REASONS = TIMEOUT_REASONS | {"endpoint_broke_off"}
REDIRECT_STATUSES = frozenset({301, 302, 303, 305, 307, 308})
NOT_SENT_REASONS = frozenset({"endpoint_throttled", "endpoint_unreachable"})
"""Reasons of an `infra_error` after which any request may be sent again."""
NO_RETRY_HEADERS = {"x-should-retry": "false"}
"""Headers that keep OpenAI's and Anthropic's clients from retrying a 5xx."""


class UpstreamProxy:
    """Calls of endpoints whose clients wait for the response."""

    def __init__(self, store: PostgresStore, actions: ActionService) -> None:
        self._store, self._actions, self._blocking = store, actions, BlockingActions(actions)
        self._stopping = asyncio.Event()
        self._known_until: dict[str, float] = {}
        """Monotonic time until which an endpoint is known to exist, by name."""

    async def call(self, action: SubmitActionRequest, caller: Caller, trace: RequestTrace) -> Action:
        """Return the settled action with the endpoint's response. Cancelling this call cancels the action.

        Raises `GatewayTimeout` and `Unavailable` if there is no response, and the errors of admission. Raises
        `EndpointNotFound` if no live broker has the endpoint; unlike submitted actions, API calls do not wait for one.
        """
        await self._require_endpoint(action.endpoint or "")
        try:
            admission = self._actions.admit(action, caller, trace=trace)
            settled = await self._blocking.wait_settled_or_stopped(self._stopping, admission, caller)
        except TooManyRequests as error:
            # Clients have their own rules for the endpoint's 429, so 429 is reserved for it.
            raise Unavailable(error.detail, retry_after_s=error.retry_after_s) from error
        if settled is None:
            raise _no_response_error(action, "this gateway is stopping; the request may have been sent")
        return _require_response(settled, action)

    async def _require_endpoint(self, endpoint: str) -> None:
        """Raise `EndpointNotFound` if no live broker has the endpoint. A positive result is cached for `CACHE_S`."""
        if time.monotonic() < self._known_until.get(endpoint, 0.0):
            return
        async with self._store.read() as tx:
            is_there = await has_endpoint(tx, endpoint)
        if not is_there:
            message = (
                f"no live broker has endpoint {endpoint!r}. Brokers read their endpoints from TANGRAM_ENDPOINTS;"
                " `tangram endpoints list` shows them"
            )
            raise EndpointNotFound(message, errors=[FieldError(field="endpoint", message=message)])
        self._known_until[endpoint] = time.monotonic() + CACHE_S

    def stop(self) -> None:
        """Answer all waiting calls with an error."""
        self._stopping.set()

    async def drain(self) -> None:
        """Cancel the remaining calls and wait for them."""
        self.stop()
        await self._blocking.drain()


def _require_response(settled: Action, action: SubmitActionRequest) -> Action:
    """Return the action if it has a usable response.

    The response of an earlier attempt is not usable, and a redirection is an error.
    """
    response = settled.result.response if settled.result is not None else None
    if response is not None and response.status in REDIRECT_STATUSES:
        said = (
            f"the endpoint redirects with status {response.status}; the operator must change the address of the"
            " endpoint"
        )
        raise _no_response_error(action, said)
    if response is not None and settled.reason not in UNUSABLE_REASONS:
        return settled
    why = f"{settled.reason or settled.outcome}: {settled.message or 'no response'}"
    if settled.outcome is ActionOutcome.DEADLINE_IN_QUEUE:
        raise GatewayTimeout(why)
    if settled.reason in NOT_SENT_REASONS:
        raise Unavailable(why, retry_after_s=RETRY_AFTER_S)
    raise _no_response_error(action, why, timed_out=settled.reason in TIMEOUT_REASONS)


def _no_response_error(action: SubmitActionRequest, detail: str, *, timed_out: bool = False) -> TangramError:
    """Return the error of a request that may have been executed. Clients must not retry it unless it is idempotent."""
    error = GatewayTimeout(detail) if timed_out else Unavailable(detail)
    if action.request is not None and not (action.request.is_idempotent or action.idempotent):
        error.headers |= NO_RETRY_HEADERS
    else:
        error.retry_after_s = RETRY_AFTER_S
    return error
