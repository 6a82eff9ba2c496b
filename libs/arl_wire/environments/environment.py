"""Persistent environments in the form in which clients create and see them."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pydantic import BaseModel, Field

from arl_wire.actions.action import (
    HOST_TEMPLATE,
    MAX_FILES,
    MAX_MIB,
    Argument,
    LabelKey,
    LabelValue,
    Name,
    RelativePath,
    TemplateName,
    VariableName,
)
from arl_wire.validation import Base64, StrictModel

__all__ = [
    "CreateEnvironmentRequest",
    "EnvironmentInfo",
    "EnvironmentListResponse",
    "EnvironmentState",
    "SnapshotInfo",
    "SnapshotListResponse",
]


class EnvironmentState(StrEnum):
    LIVE = "live"
    ENDING = "ending"
    """A client ended the environment; no more actions start in it."""
    ENDED = "ended"
    LOST = "lost"
    """The node or the first process of the environment died.

    The name stays in use until the environment is deleted, so that no new environment silently replaces it.
    """


class CreateEnvironmentRequest(StrictModel):
    """An environment created before its first action; it occupies memory and disk until it ends, but no cores."""

    task: Name = Field(description="The RL workload this belongs to")
    trajectory: Name | None = Field(default=None, description="Its name; one is made up where there is none")
    snapshot: UUID | None = Field(
        default=None,
        description="Begin with what was written in another environment, on the node that has it, with its template "
        "and, where none are given, its sizes",
    )
    template: TemplateName = HOST_TEMPLATE
    memory_mib: int = Field(default=512, ge=8, le=MAX_MIB)
    disk_mib: int = Field(default=128, ge=1, le=MAX_MIB, description="Size of what can be written in it")
    pids: int = Field(default=256, ge=1, le=1 << 20, description="Processes and threads at once")
    idle_ttl_s: int = Field(default=3600, ge=1, le=30 * 86400, description="It ends when unused for so long")
    env: dict[VariableName, Argument] = Field(
        default_factory=dict, max_length=256, description="Variables of every action in it; an action's own go first"
    )
    files: dict[RelativePath, Base64] = Field(
        default_factory=dict, max_length=MAX_FILES, description="Below the working directory; contents in base64"
    )
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64, description="Of its making action")


class EnvironmentInfo(BaseModel):
    """The current state of an environment."""

    id: UUID
    task: str
    trajectory: str
    state: EnvironmentState
    end_reason: str | None = None
    node: str
    template: str
    memory_mib: int
    disk_mib: int
    pids: int
    idle_ttl_s: int
    created_at: datetime
    last_used_at: datetime
    ended_at: datetime | None = Field(default=None, description="When it ended or was lost")


class EnvironmentListResponse(BaseModel):
    """A page of environments, newest first. `next_cursor` is absent on the last page."""

    items: list[EnvironmentInfo]
    next_cursor: str | None = None


class SnapshotInfo(BaseModel):
    """The files written in an environment, without processes and memory. A snapshot is stored on one node."""

    id: UUID
    task: str
    trajectory: str
    environment: UUID
    node: str
    template: str
    memory_mib: int
    disk_mib: int
    pids: int
    members: int
    bytes: int
    created_at: datetime


class SnapshotListResponse(BaseModel):
    """A page of snapshots, newest first. `next_cursor` is absent on the last page."""

    items: list[SnapshotInfo]
    next_cursor: str | None = None
