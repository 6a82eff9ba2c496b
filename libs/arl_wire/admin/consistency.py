"""The report of a consistency check of the rows: counts, amounts, and whatever contradicts an invariant."""

from datetime import datetime

from pydantic import BaseModel

__all__ = ["ConsistencyFinding", "ConsistencyReport", "NodeUsage", "ResourceAllocation"]


class ConsistencyFinding(BaseModel):
    """Two things that should agree and don't."""

    check: str
    subject: str
    detail: str


class ResourceAllocation(BaseModel):
    """Computed from rows now: what attempts and living environments hold of one resource of a node."""

    node: str
    resource: str
    held: int
    capacity: int


class NodeUsage(BaseModel):
    node: str
    attempts: int
    """Granted or running, in whatever environment."""
    environments: int
    """Persistent ones that rows say live there."""


class ConsistencyReport(BaseModel):
    """One snapshot of the rows."""

    at: datetime
    actions: dict[str, int]
    """Per state."""
    nodes: list[NodeUsage]
    held: list[ResourceAllocation]
    findings: list[ConsistencyFinding]
    """The first 1000, in order of check and subject."""
