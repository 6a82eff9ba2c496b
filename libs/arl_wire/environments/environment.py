"""Persistent environments in the form in which clients create and see them."""

from datetime import UTC, datetime, timedelta
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
from arl_wire.environments.network import NETWORK_DESCRIPTION, NetworkAllowList, NetworkSetting
from arl_wire.validation import Base64, StrictModel

__all__ = [
    "EPOCH",
    "MICROSECOND",
    "CreateEnvironmentRequest",
    "EnvironmentInfo",
    "EnvironmentListResponse",
    "EnvironmentState",
    "SnapshotInfo",
    "SnapshotListResponse",
]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MAX_URL_LIFETIME_S = 30 * 86400
"""Longest time until the URL of a port ends, in seconds."""


class EnvironmentState(StrEnum):
    """The states of an environment."""

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

    task: Name = Field(description="RL workload to which the environment belongs")
    trajectory: Name | None = Field(default=None, description="Name of the rollout. Absent: a name is generated")
    snapshot: UUID | None = Field(
        default=None,
        description="Snapshot from which to create the environment. The new environment is on the node of the snapshot"
        " and has its template, and its sizes unless others are given",
    )
    template: TemplateName = HOST_TEMPLATE
    memory_mib: int = Field(default=512, ge=8, le=MAX_MIB)
    disk_mib: int = Field(default=128, ge=1, le=MAX_MIB, description="Size of the writable files in MiB")
    pids: int = Field(
        default=256, ge=1, le=1 << 20, description="Maximum number of processes and threads at the same time"
    )
    idle_ttl_s: int = Field(
        default=3600, ge=1, le=30 * 86400, description="Seconds without use after which the environment ends"
    )
    env: dict[VariableName, Argument] = Field(
        default_factory=dict,
        max_length=256,
        description="Variables of every action in the environment; an action's own variables take precedence",
    )
    files: dict[RelativePath, Base64] = Field(
        default_factory=dict,
        max_length=MAX_FILES,
        description="Files below the working directory: path to content in base64",
    )
    network: NetworkSetting = Field(
        default="none", description=f"Network of programs in the environment. {NETWORK_DESCRIPTION}"
    )
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=64, description="Labels of the action that creates the environment"
    )


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
    network: str | NetworkAllowList = Field(
        default="none", description="Network of programs in the environment: `none`, `open` or the allowed hosts"
    )
    created_at: datetime
    last_used_at: datetime
    ended_at: datetime | None = Field(default=None, description="Time at which the environment ended or was lost")

    @property
    def cursor(self) -> str:
        """Return the cursor of the list after this environment."""
        return f"{(self.created_at - EPOCH) // MICROSECOND}.{self.id}"


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


class SignPortRequest(StrictModel):
    """A request for a URL by which clients without an API key reach one port."""

    lifetime_s: int = Field(
        default=3600, ge=1, le=MAX_URL_LIFETIME_S, description="Seconds until the URL ends. It also ends with its key"
    )


class SignedPort(BaseModel):
    """A URL by which clients without an API key reach one port of an environment."""

    path: str = Field(
        description="Path of the URL, which ends with a slash. Append the path for the server. Everyone who has it can"
        " use the port"
    )
    expires_at: datetime = Field(description="Time at which the URL ends")
