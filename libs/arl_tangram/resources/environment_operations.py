"""Operations on environments, without I/O."""

import json
from collections.abc import Mapping
from uuid import UUID

from arl_tangram.operations import (
    RESPONSE_MARGIN_S,
    WAIT_CHUNK_S,
    Operation,
    SdkRequest,
    call_with_retry,
    cancel,
    list_all_pages,
)
from arl_wire.environments.environment import (
    CreateEnvironmentRequest,
    EnvironmentInfo,
    EnvironmentListResponse,
    EnvironmentState,
    SignedPort,
    SignPortRequest,
)
from arl_wire.environments.forks import ForkEnvironmentRequest, ForkEnvironmentResponse
from arl_wire.environments.network import UpdateEnvironmentRequest

__all__ = [
    "create_environment",
    "discard_environment",
    "end_environment",
    "fork_environment",
    "get_environment",
    "list_environments",
    "port_url",
    "update_environment",
]

FORK_SAVE_S = 600.0
"""Seconds for saving the files of a source, including its wait for earlier actions."""

DISCARD_WAIT_S = 2.0
"""Seconds that the creation of an environment gets to end before it is cancelled."""


def create_environment(
    request: CreateEnvironmentRequest, *, retry_timeout_s: float, key: str
) -> Operation[EnvironmentInfo]:
    """Create an environment and wait until it exists. All attempts use one idempotency key."""
    while True:
        created = yield from _post_environment(request, wait_s=WAIT_CHUNK_S, retry_timeout_s=retry_timeout_s, key=key)
        if isinstance(created, EnvironmentInfo):
            return created


def discard_environment(request: CreateEnvironmentRequest, *, retry_timeout_s: float, key: str) -> Operation[None]:
    """End the environment that was requested with `key`, or cancel its creation, even if its id never arrived."""
    # A creation that has begun cannot be cancelled, so it gets time to end first.
    created = yield from _post_environment(request, wait_s=DISCARD_WAIT_S, retry_timeout_s=retry_timeout_s, key=key)
    if isinstance(created, EnvironmentInfo):
        yield from end_environment(created.id, retry_timeout_s=retry_timeout_s)
    else:
        yield from cancel(created, retry_timeout_s=retry_timeout_s)


def _post_environment(
    request: CreateEnvironmentRequest, *, wait_s: float, retry_timeout_s: float, key: str
) -> Operation[EnvironmentInfo | UUID]:
    """Return the environment, or the id of the action that is going to create it."""
    call = SdkRequest(
        method="POST",
        path="/v1/environments",
        query={"wait": wait_s},
        body=request,
        headers={"idempotency-key": key},
        timeout_s=wait_s + RESPONSE_MARGIN_S,
    )
    answer = json.loads((yield from call_with_retry(call, retry_timeout_s)))
    if answer.get("state") in list(EnvironmentState):
        return EnvironmentInfo.model_validate(answer)
    return UUID(answer["id"])


def get_environment(id: UUID, *, retry_timeout_s: float) -> Operation[EnvironmentInfo]:
    call = SdkRequest(method="GET", path=f"/v1/environments/{id}")
    return EnvironmentInfo.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def update_environment(
    id: UUID, request: UpdateEnvironmentRequest, *, retry_timeout_s: float
) -> Operation[EnvironmentInfo]:
    call = SdkRequest(method="PATCH", path=f"/v1/environments/{id}", body=request)
    return EnvironmentInfo.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def list_environments(query: Mapping[str, str | int], *, retry_timeout_s: float) -> Operation[list[EnvironmentInfo]]:
    """List all environments, newest first."""
    return (yield from list_all_pages("/v1/environments", query, EnvironmentListResponse, retry_timeout_s))


def end_environment(id: UUID, *, retry_timeout_s: float) -> Operation[None]:
    yield from call_with_retry(SdkRequest(method="DELETE", path=f"/v1/environments/{id}"), retry_timeout_s)


def fork_environment(
    id: UUID, request: ForkEnvironmentRequest, *, wait_s: float, retry_timeout_s: float, key: str
) -> Operation[ForkEnvironmentResponse]:
    """Fork an environment and wait for all forks. All attempts use one idempotency key."""
    call = SdkRequest(
        method="POST",
        path=f"/v1/environments/{id}:fork",
        query={"wait": wait_s},
        body=request,
        headers={"idempotency-key": key},
        timeout_s=FORK_SAVE_S + wait_s + RESPONSE_MARGIN_S,
    )
    return ForkEnvironmentResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def port_url(id: UUID, port: int, *, lifetime_s: int, url: str, retry_timeout_s: float) -> Operation[str]:
    """Return a URL of a port that needs no API key."""
    call = SdkRequest(
        method="POST", path=f"/v1/environments/{id}/ports/{port}:sign", body=SignPortRequest(lifetime_s=lifetime_s)
    )
    return url + SignedPort.model_validate_json((yield from call_with_retry(call, retry_timeout_s))).path
