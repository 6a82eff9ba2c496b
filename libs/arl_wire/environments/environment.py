"""Persistent environments as clients make and see them."""

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
    """Somebody asked for its end; nothing more starts in it."""
    ENDED = "ended"
    LOST = "lost"
    """Its node or its first process died. The name stays taken until it is deleted, so that nothing begins anew in it
    unnoticed."""


class CreateEnvironmentRequest(StrictModel):
    """An environment before its first action; it holds memory and disk until it ends, and no cores."""

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
    """An environment as it is now."""

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
    gone_at: datetime | None = Field(default=None, description="When it ended or was lost")


class EnvironmentListResponse(BaseModel):
    """Newest first. `next_cursor` is absent on the last page."""

    items: list[EnvironmentInfo]
    next_cursor: str | None = None


class SnapshotInfo(BaseModel):
    """All that was written in an environment: files, and no processes or memory. It lies on one node."""

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
    """Newest first. `next_cursor` is absent on the last page."""

    items: list[SnapshotInfo]
    next_cursor: str | None = None
