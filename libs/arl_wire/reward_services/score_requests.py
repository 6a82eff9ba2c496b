"""Scores asked for and answered in one request."""

from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from arl_wire.actions.action import Name
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, Score, ScoreItem, ServiceName
from arl_wire.validation import StrictModel

__all__ = ["ScoreRequest", "ScoreResponse"]


class ScoreRequest(StrictModel):
    """Items for a reward service, by somebody who waits for their scores."""

    service: ServiceName
    items: list[ScoreItem] = Field(min_length=1, max_length=MAX_ITEMS)
    task: Name = Field(description="The RL workload this belongs to")
    trajectory: Name | None = Field(default=None, description="The rollout this belongs to")
    step: int | None = Field(default=None, ge=0, le=2**31 - 1, description="Training step, for figures")
    priority: int = Field(default=0, ge=-10, le=10, description="Higher goes first, among one task's")
    within_s: float = Field(
        default=55, gt=0, le=600, allow_inf_nan=False, description="Of no use later: then it is 503, and not scored"
    )

    @model_validator(mode="after")
    def _check_size(self) -> "ScoreRequest":
        if sum(item.characters for item in self.items) > MAX_CHARACTERS:
            raise ValueError(f"items have more than {MAX_CHARACTERS} characters in all")
        return self


class ScoreResponse(BaseModel):
    """An entry for each item, in their order."""

    action: UUID = Field(description="In which they were scored, with those of other calls")
    first: int = Field(description="Which of its items the first one is")
    scores: list[Score]
