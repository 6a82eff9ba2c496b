"""The right to run one attempt of one action."""

from dataclasses import dataclass
from uuid import UUID

__all__ = ["Fence"]


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """`grant_no` rises with every grant; whoever lost a fence can change nothing any more."""

    action_id: UUID
    grant_no: int
