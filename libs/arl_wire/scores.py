"""What is scored, and what comes back for each item."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from arl_wire.base import Strict
from arl_wire.checks import no_nul

__all__ = ["MAX_CHARACTERS", "MAX_ITEMS", "ItemError", "Score", "ScoreItem", "ServiceName"]

MAX_ITEMS = 256
MAX_CHARACTERS = 1 << 20
"""In all items of one action together."""

ServiceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
_ScoredText = Annotated[str, StringConstraints(max_length=64 << 10), AfterValidator(no_nul)]


class ScoreItem(Strict):
    """A text, and what it is compared with."""

    text: _ScoredText
    reference: _ScoredText

    @property
    def characters(self) -> int:
        return len(self.text) + len(self.reference)


class ItemError(BaseModel):
    """Why there is no score of one item: `empty_text`, `empty_reference` or `not_finite`."""

    code: str
    message: str


class Score(BaseModel):
    """Of one item: `score`, or `error`. Never a 0 for something that was not computed."""

    score: float | None = None
    truncated: bool = Field(default=False, description="The model read only the beginning of a text")
    error: ItemError | None = None
