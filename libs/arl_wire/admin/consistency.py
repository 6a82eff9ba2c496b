"""Report of a consistency check of the rows: counts, amounts and violated invariants."""

from datetime import datetime

from pydantic import BaseModel

__all__ = ["ConsistencyFinding", "ConsistencyReport", "NodeUsage", "ResourceAllocation"]


class ConsistencyFinding(BaseModel):
    """A contradiction between two values that should agree."""

    check: str
    subject: str
    detail: str


class ResourceAllocation(BaseModel):
    """The allocations of attempts and live environments on one resource of a node, computed from current rows."""

    node: str
    resource: str
    allocated: int
    capacity: int


class NodeUsage(BaseModel):
    """The numbers of attempts and environments on a node, computed from current rows."""

    node: str
    attempts: int
    """Number of granted or running attempts, in any environment."""
    environments: int
    """Number of persistent environments that are live according to the rows."""


class ConsistencyReport(BaseModel):
    """A report over one snapshot of the rows."""

    at: datetime
    actions: dict[str, int]
    """Number of actions per state."""
    nodes: list[NodeUsage]
    allocations: list[ResourceAllocation]
    findings: list[ConsistencyFinding]
    """First 1000 findings, by check and subject."""
