"""Calls of external APIs, for both clients. A broker shares the quotas of each API among all jobs."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack

from arl_core.domain.states import ActionOutcome
from arl_tangram.operations import ActionFailed, Operation, SdkRequest, call_with_retry, run
from arl_tangram.options import check_option_names, invalid_field, validate_request
from arl_tangram.timeouts import with_timeout
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.calls import CallResponse, Endpoint, EndpointListResponse

__all__ = ["AsyncEndpointMethods", "CallOptions", "EndpointMethods", "call_action", "response_of"]

Value = TypeVar("Value")
REQUEST_FIELDS = frozenset({"method", "query", "headers", "json_body", "body"})


class CallOptions(TypedDict, total=False):
    """The fields of `SubmitActionRequest` for an action of kind `call`, and the fields of its request."""

    method: str
    """Default: GET without a body, else POST."""
    query: Mapping[str, str | Sequence[str]]
    headers: Mapping[str, str]
    json_body: Any
    """Value that is sent as JSON; replaces `body`."""
    body: str
    task: str
    trajectory: str | None
    profile: str
    """Name of the workload if the endpoint's name does not determine how long a call takes."""
    step: int
    prompt: str
    group: str
    expected_turns: int
    progress: float
    timeout_s: float
    priority: int
    deadline_s: float
    retries: int
    idempotent: bool
    """Permission to repeat the call if it is unknown whether it was carried out."""
    labels: Mapping[str, str]


def call_action(endpoint: str, path: str = "", **options: Unpack[CallOptions]) -> SubmitActionRequest:
    """Build the action that sends this request. Raises `ValidationFailed` naming the field."""
    check_option_names(options, CallOptions.__annotations__)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    request = {name: given.pop(name) for name in REQUEST_FIELDS & given.keys()}
    has_body = not request.keys().isdisjoint(("json_body", "body"))
    request = {"path": path, "method": "POST" if has_body else "GET", **request}
    body = {"task": "call", **given, "kind": "call", "endpoint": endpoint, "request": request}
    return validate_request(SubmitActionRequest, body)


def response_of(action: Action) -> CallResponse:
    """Return the response, also for a request error (4xx). Raises `ActionFailed` for any other failure.

    An example is `infra_error`: the endpoint is overloaded or rejects the configured key.
    """
    response = action.result.response if action.result is not None else None
    if response is None or action.outcome not in (ActionOutcome.OK, ActionOutcome.USER_ERROR):
        raise ActionFailed(action)
    return response


class EndpointMethods:
    """Methods for endpoints, the external APIs that brokers serve."""

    _retry_timeout_s: float

    def call(
        self, endpoint: str, path: str = "", *, wait_timeout_s: float | None = None, **options: Unpack[CallOptions]
    ) -> CallResponse:
        """Send a request and wait for the response, which can have any status below 500.

        Raises `ActionFailed` if there is no response, and `WaitTimeout` if the call continues after `wait_timeout_s`.
        """
        return self._run(_call_endpoint(call_action(endpoint, path, **options), wait_timeout_s, self._retry_timeout_s))

    def endpoints(self) -> list[Endpoint]:
        """List the external APIs that brokers serve."""
        return self._run(_list_endpoints(self._retry_timeout_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncEndpointMethods:
    """Asynchronous methods for endpoints."""

    _retry_timeout_s: float

    async def call(
        self, endpoint: str, path: str = "", *, wait_timeout_s: float | None = None, **options: Unpack[CallOptions]
    ) -> CallResponse:
        """Send a request and wait for the response, which can have any status below 500.

        Raises `ActionFailed` if there is no response, and `WaitTimeout` if the call continues after `wait_timeout_s`.
        """
        return await self._run(
            _call_endpoint(call_action(endpoint, path, **options), wait_timeout_s, self._retry_timeout_s)
        )

    async def endpoints(self) -> list[Endpoint]:
        """List the external APIs that brokers serve."""
        return await self._run(_list_endpoints(self._retry_timeout_s))

    @abstractmethod
    async def _run(self, operation: Operation[Value]) -> Value: ...


def _call_endpoint(
    action: SubmitActionRequest, wait_timeout_s: float | None, retry_timeout_s: float
) -> Operation[CallResponse]:
    if wait_timeout_s is not None and not wait_timeout_s > 0:
        raise invalid_field("wait_timeout_s", f"must be more than 0, got {wait_timeout_s:g}")
    waiting = run(action, timeout_s=wait_timeout_s, retry_timeout_s=retry_timeout_s)
    return response_of((yield from with_timeout(waiting, wait_timeout_s)))


def _list_endpoints(retry_timeout_s: float) -> Operation[list[Endpoint]]:
    content = yield from call_with_retry(SdkRequest(method="GET", path="/v1/endpoints"), retry_timeout_s)
    return EndpointListResponse.model_validate_json(content).items
