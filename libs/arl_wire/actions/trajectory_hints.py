"""Hints about a trajectory, from which the scheduler predicts when the trajectory ends."""

from typing import Annotated, TypeVar

from pydantic import Field, ValidationInfo

__all__ = [
    "TRAJECTORY_HINTS",
    "ExpectedTurns",
    "GroupName",
    "Progress",
    "PromptKey",
    "require_trajectory",
]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"
HintT = TypeVar("HintT")

PromptKey = Annotated[
    str,
    Field(
        pattern=_NAME,
        max_length=128,
        description="Key of the prompt of the trajectory, equal in all epochs, such as the id of the problem. The"
        " scheduler learns the lengths of its trajectories from earlier steps",
    ),
]
GroupName = Annotated[
    str,
    Field(pattern=_NAME, max_length=128, description="Group of the trajectory, such as the samples of one prompt"),
]
ExpectedTurns = Annotated[
    int,
    Field(ge=1, le=1_000_000, description="Expected number of actions of the trajectory, earlier ones included"),
]
Progress = Annotated[
    float,
    Field(ge=0, le=1, allow_inf_nan=False, description="Completed fraction of the trajectory at this action, 0 to 1"),
]

TRAJECTORY_HINTS = ("prompt", "group", "expected_turns", "progress")
"""Fields of an action that describe its trajectory. The latest value applies."""


def require_trajectory(value: HintT, info: ValidationInfo) -> HintT:
    """Return the value of a hint. Raises `ValueError` if the action names no trajectory."""
    if value is not None and "trajectory" in info.data and info.data["trajectory"] is None:
        raise ValueError(f"{info.field_name} describes a trajectory: give `trajectory` as well, or remove the field")
    return value
