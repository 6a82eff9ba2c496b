"""A batch as it is read here: what is wrong with one item is that item's answer and nobody else's."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from arl_kit.app import validation_failed
from arl_wire.actions import SubmitAction
from arl_wire.errors import FieldError, Problem, TangramError, ValidationFailed

__all__ = ["SubmitBatch", "problem_of_item"]


def _or_what_is_wrong(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError as error:
        return validation_failed(error.errors(include_url=False, include_context=True, include_input=False))


class SubmitBatch(BaseModel):
    """Up to 1000 actions. Each is accepted or refused for itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    actions: list[Annotated[SubmitAction, WrapValidator(_or_what_is_wrong)]] = Field(min_length=1, max_length=1000)

    def submissions(self) -> Sequence[SubmitAction | ValidationFailed]:
        """What `actions` really holds: the schema that clients see says it without the failures."""
        return self.actions


def problem_of_item(error: TangramError, index: int) -> Problem:
    """With the item in the names of the fields; what is wrong with a header is wrong for all."""
    problem = error.problem()
    fields = [_in_item(field, index) for field in problem.errors]
    return problem.model_copy(update={"errors": fields, "detail": f"actions.{index}: {problem.detail}"})


def _in_item(error: FieldError, index: int) -> FieldError:
    if error.field.startswith("header."):
        return error
    inside = "" if error.field == "body" else f".{error.field}"
    return FieldError(field=f"actions.{index}{inside}", message=error.message)
