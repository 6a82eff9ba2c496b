"""The right to run one attempt of one action."""

from typing import NamedTuple
from uuid import UUID

__all__ = ["Fence"]


class Fence(NamedTuple):
    """`grant_no` rises with every grant; whoever lost a fence can change nothing any more."""

    action_id: UUID
    grant_no: int
