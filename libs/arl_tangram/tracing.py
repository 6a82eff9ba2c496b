"""Where an action's time went, and why it waits."""

from uuid import UUID

from arl_tangram.operations import Call, Operation, answered
from arl_wire.explain import ActionExplanation
from arl_wire.traces import ActionTrace

__all__ = ["explain", "trace"]


def trace(id: UUID, *, patience_s: float) -> Operation[ActionTrace]:
    call = Call(method="GET", path=f"/v1/actions/{id}/trace")
    return ActionTrace.model_validate_json((yield from answered(call, patience_s)))


def explain(id: UUID, *, patience_s: float) -> Operation[ActionExplanation]:
    call = Call(method="GET", path=f"/v1/actions/{id}/explain")
    return ActionExplanation.model_validate_json((yield from answered(call, patience_s)))
