"""Snapshots of kept environments as clients see them."""

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel

__all__ = ["SnapshotInfo", "SnapshotListResponse"]


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
