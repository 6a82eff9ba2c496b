"""Requests that go through to an endpoint: its API's client has another address and key, and is otherwise as it was."""

import asyncio
import time

from arl_core.states import Outcome
from arl_gateway.auth import Caller
from arl_gateway.endpoint_rows import is_there_an_endpoint
from arl_gateway.held import Held
from arl_gateway.service import Actions, Trace
from arl_store.tx import Store
from arl_wire.actions import Action, SubmitAction
from arl_wire.errors import EndpointUnknown, FieldError, GatewayTimeout, TangramError, TooManyRequests, Unavailable

__all__ = ["Through"]

AGAIN_S = 5
KEPT_S = 2.0
LATE = frozenset({"endpoint_timeout"})
NOT_THE_LAST = LATE | {"endpoint_broke_off"}
REDIRECTIONS = frozenset({301, 302, 303, 305, 307, 308})
NOT_SENT = frozenset({"endpoint_throttled", "endpoint_unreachable"})
"""Reasons of an `infra_error` after which whoever asked may ask again, whatever he asked for."""
ASK_NO_MORE = {"x-should-retry": "false"}
"""OpenAI's and Anthropic's clients do not send again what is answered with it; they do after any other 5xx."""


class Through:
    def __init__(self, store: Store, actions: Actions) -> None:
        self._store, self._actions, self._held = store, actions, Held(actions)
        self._stopping = asyncio.Event()
        self._there_until: dict[str, float] = {}
        """By endpoint, of those that there are."""

    async def answered(self, action: SubmitAction, caller: Caller, trace: Trace) -> Action:
        """The settled action, with what the endpoint answered. Where this is cancelled, so is the action.

        Raises `GatewayTimeout` and `Unavailable` where there is no answer, and what admission refuses with; also an
        endpoint that no living broker has: who submits an action may want to wait for one, who calls an API does not.
        """
        await self._must_be_there(action.endpoint or "")
        try:
            admission = self._actions.admit(action, caller, trace=trace)
            settled = await self._held.settled_before(self._stopping, admission, caller)
        except TooManyRequests as error:
            # A 429 is the endpoint's here: its clients have rules of their own for that.
            raise Unavailable(error.detail, retry_after_s=error.retry_after_s) from error
        if settled is None:
            raise _without_answer(action, "this gateway is about to end, and whether it was sent is not known")
        return _with_answer(settled, action)

    async def _must_be_there(self, endpoint: str) -> None:
        """One look is good for all that ask in the next seconds."""
        if time.monotonic() < self._there_until.get(endpoint, 0.0):
            return
        async with self._store.read() as tx:
            is_there = await is_there_an_endpoint(tx, endpoint)
        if not is_there:
            message = f"no broker that lives has {endpoint!r}; TANGRAM_ENDPOINTS names them"
            raise EndpointUnknown(message, errors=[FieldError(field="endpoint", message=message)])
        self._there_until[endpoint] = time.monotonic() + KEPT_S

    def stop(self) -> None:
        """Who waits is told so."""
        self._stopping.set()

    async def drain(self) -> None:
        """What is left is cancelled."""
        self.stop()
        await self._held.drain()


def _with_answer(settled: Action, action: SubmitAction) -> Action:
    """What was answered to a try before the last says nothing of that one, and a redirection leads nowhere."""
    response = settled.result.response if settled.result is not None else None
    if response is not None and response.status in REDIRECTIONS:
        said = f"the endpoint answered {response.status} and another address; only its operator can change that"
        raise _without_answer(action, said)
    if response is not None and settled.reason not in NOT_THE_LAST:
        return settled
    why = f"{settled.reason or settled.outcome}: {settled.message or 'no answer'}"
    if settled.outcome is Outcome.DEADLINE_IN_QUEUE:
        raise GatewayTimeout(why)
    if settled.reason in NOT_SENT:
        raise Unavailable(why, retry_after_s=AGAIN_S)
    raise _without_answer(action, why, late=settled.reason in LATE)


def _without_answer(action: SubmitAction, why: str, *, late: bool = False) -> TangramError:
    """Of what may have been carried out: a client is not to repeat what does harm when it is done twice."""
    error = GatewayTimeout(why) if late else Unavailable(why)
    if action.request is not None and not (action.request.is_repeatable or action.idempotent):
        error.headers |= ASK_NO_MORE
    else:
        error.retry_after_s = AGAIN_S
    return error
