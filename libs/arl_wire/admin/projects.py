"""Projects as administrators see them: made by their first key, sharing the nodes by weight."""

from pydantic import BaseModel, ConfigDict, Field

from arl_wire.admin.queues import Weight

__all__ = ["ChangeProjectRequest", "Project", "ProjectListResponse"]


class ChangeProjectRequest(BaseModel):
    """What to change of a project."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: Weight = Field(description="Its share beside the other projects; 1 at first")


class Project(BaseModel):
    id: int
    name: str
    weight: float = Field(description="Its share beside the other projects")


class ProjectListResponse(BaseModel):
    """In order of their making. `next_cursor` is absent on the last page."""

    items: list[Project]
    next_cursor: int | None = None
