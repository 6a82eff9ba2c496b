"""Where an action's time went, and why it waits."""

from uuid import UUID

from arl_tangram.operations import Operation, SdkRequest, call_with_retry
from arl_wire.explain import ActionExplanation
from arl_wire.traces import ActionTrace

__all__ = ["explain", "trace"]


def trace(id: UUID, *, retry_timeout_s: float) -> Operation[ActionTrace]:
    call = SdkRequest(method="GET", path=f"/v1/actions/{id}/trace")
    return ActionTrace.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def explain(id: UUID, *, retry_timeout_s: float) -> Operation[ActionExplanation]:
    call = SdkRequest(method="GET", path=f"/v1/actions/{id}/explain")
    return ActionExplanation.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))
