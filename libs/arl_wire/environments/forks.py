"""Forks: new environments with the files of an existing one."""

from typing import Self
from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from arl_wire.actions.action import LabelKey, LabelValue, Name
from arl_wire.environments.environment import EnvironmentInfo
from arl_wire.validation import StrictModel

__all__ = ["MAX_FORKS", "ForkEnvironmentRequest", "ForkEnvironmentResponse"]

MAX_FORKS = 64
"""Maximum number of forks of one request."""


class ForkEnvironmentRequest(StrictModel):
    """A number of new environments with the files, the template, the sizes and the variables of an existing one."""

    count: int = Field(ge=1, le=MAX_FORKS, description="Number of new environments. All of them are created, or none")
    trajectories: list[Name] | None = Field(
        default=None,
        max_length=MAX_FORKS,
        description="Names of the rollouts of the forks, one for each fork. Absent: names are generated",
    )
    idle_ttl_s: int | None = Field(
        default=None,
        ge=1,
        le=30 * 86400,
        description="Seconds without use after which a fork ends. Absent: as in the source",
    )
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=64, description="Labels of the actions that create the forks"
    )

    @model_validator(mode="after")
    def _names_match_count(self) -> Self:
        names = self.trajectories
        if names is not None and len(names) != self.count:
            raise ValueError(f"trajectories has {len(names)} names for {self.count} forks: give one name for each fork")
        if names is not None and len(set(names)) != len(names):
            raise ValueError("trajectories has a name twice: each fork needs its own")
        return self


class ForkEnvironmentResponse(BaseModel):
    """The forks of an environment. Processes and memory are never copied."""

    source: UUID = Field(description="Environment whose files the forks have")
    items: list[EnvironmentInfo] = Field(description="The forks, in the order of `trajectories` if given")
    processes_copied: bool = Field(
        default=False, description="Always false: open shells and running processes stay in the source only"
    )
    leftover_processes: int | None = Field(
        default=None,
        description="Processes that actions of the source left running, and that the forks do not have. Some may have"
        " ended since. Absent if no action has run in the source",
    )
