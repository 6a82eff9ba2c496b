"""Batch submission: an invalid item is reported in its own answer and does not affect other items."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from arl_kit.app import validation_failed
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.actions.batches import GANG_DESCRIPTION, MAX_GANG_SIZE
from arl_wire.errors import FieldError, GangRefused, ProblemDetails, TangramError, ValidationFailed

__all__ = ["ActionBatchRequest", "check_gang", "item_problem"]


ParsedItem = SubmitActionRequest | ValidationFailed
"""A parsed action, or its validation error."""


def _parse_or_error(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError as error:
        return validation_failed(error.errors(include_url=False, include_context=True, include_input=False))


class ActionBatchRequest(BaseModel):
    """A batch of up to 1000 actions. Each action is accepted or refused independently."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    actions: list[Annotated[SubmitActionRequest, WrapValidator(_parse_or_error)]] = Field(min_length=1, max_length=1000)

    gang: bool = Field(default=False, description=GANG_DESCRIPTION)

    def submissions(self) -> Sequence[SubmitActionRequest | TangramError]:
        """Return the parsed items, validation failures included. The schema that clients see omits the failures."""
        return check_gang(self.actions) if self.gang else self.actions


def check_gang(actions: Sequence[ParsedItem]) -> Sequence[ParsedItem | GangRefused]:
    """Return all actions unchanged, or refuse all. Invalid items get their own error, the others `GangRefused`."""
    checked = [each if isinstance(each, ValidationFailed) else _gang_error(each, actions) or each for each in actions]
    wrong = [at for at, each in enumerate(checked) if isinstance(each, ValidationFailed)]
    if not wrong:
        return checked
    because = GangRefused(
        f"all actions of a gang are refused because actions.{wrong[0]} is refused; correct that action and submit the"
        " gang again"
    )
    return [each if isinstance(each, ValidationFailed) else because for each in checked]


def _gang_error(action: SubmitActionRequest, gang: Sequence[ParsedItem]) -> ValidationFailed | None:
    first = next(each for each in gang if isinstance(each, SubmitActionRequest))
    if not 2 <= len(gang) <= MAX_GANG_SIZE:
        field, message = "gang", f"a gang must have 2 to {MAX_GANG_SIZE} actions"
    elif action.kind != "exec":
        field, message = "kind", "every action of a gang must be of kind `exec`"
    elif action.environment.id is not None or action.environment.scope != "ephemeral":
        field, message = "environment.scope", "every action of a gang needs a fresh environment: use scope `ephemeral`"
    elif action.task != first.task:
        field, message = "task", "all actions of a gang must have the same task"
    elif action.priority != first.priority:
        field, message = "priority", "all actions of a gang must have the same priority"
    else:
        return None
    return ValidationFailed(f"{field}: {message}", errors=[FieldError(field=field, message=message)])


def item_problem(error: TangramError, index: int) -> ProblemDetails:
    """Return the error of one item, with the item's index in each field name. Header errors keep their field names."""
    problem = error.to_problem()
    fields = [_item_field(field, index) for field in problem.errors]
    return problem.model_copy(update={"errors": fields, "detail": f"actions.{index}: {problem.detail}"})


def _item_field(error: FieldError, index: int) -> FieldError:
    if error.field.startswith("header."):
        return error
    inside = "" if error.field == "body" else f".{error.field}"
    return FieldError(field=f"actions.{index}{inside}", message=error.message)
