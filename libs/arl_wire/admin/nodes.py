"""Nodes for operators."""

from datetime import datetime
from typing import Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["ChangeNodeRequest", "EnforcementStatus", "JoinNodeResponse", "NodeInfo", "NodeListResponse", "NodeTemplate"]


class EnforcementStatus(BaseModel):
    """A kind of isolation limit, probed when the node starts."""

    name: str
    level: Literal["enforced", "best_effort", "absent"]
    mechanism: str
    reason: str = ""
    fix: str = ""


class NodeTemplate(BaseModel):
    """A file tree that environments on the node can start from, in addition to `host`."""

    name: str
    digest: str = Field(description="Digest of the image from which the template was made")
    bytes: int


class NodeInfo(BaseModel):
    """A node with its capacity, liveness, load and enforced limits."""

    name: str
    kind: str
    pool: str = Field(default="default", description="Pool of a node that joined; other nodes are in `default`")
    cell: int | None = Field(default=None, description="Cell of the node. Only a router of several cells returns it")
    driver: str
    epoch: UUID
    capacity: dict[str, int]
    registered_at: datetime
    last_heartbeat_at: datetime
    alive: bool
    cordoned: bool = Field(
        description="True if the node accepts no new environments and no actions outside existing ones"
    )
    drain_deadline_at: datetime | None = Field(
        default=None,
        description="Time at which everything that remains on the node is ended. Absent unless the node is being"
        " drained",
    )
    ends_at: datetime | None = Field(
        default=None,
        description="Time at which the machine ends the node, such as the end of its batch job. No action starts whose"
        " `timeout_s` does not end before. Absent if the node has no known end",
    )
    drained: bool = Field(default=False, description="True if the node was drained and nothing remains on it")
    running: int = Field(description="Granted and running actions of the node")
    allocated_cpu_milli: int = Field(default=0, description="Milli-cores allocated to these actions")
    environments: int
    enforced: list[EnforcementStatus]
    templates: list[NodeTemplate] = []


class ChangeNodeRequest(BaseModel):
    """A request to cordon, drain or reopen a node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cordoned: bool = Field(
        description="True to cordon the node: it accepts no new environments, and existing ones continue. False to"
        " reopen it and to stop draining"
    )
    drain_deadline_s: float | None = Field(
        default=None,
        ge=0,
        le=30 * 86_400,
        description="Seconds that existing trajectories have to end before the node is drained. Then their actions are"
        " queued again as far as their `retries` allow, and their environments are lost"
        " (`environment_lost`)",
    )

    @model_validator(mode="after")
    def _check_drain_needs_cordon(self) -> Self:
        if self.drain_deadline_s is not None and not self.cordoned:
            raise ValueError("`drain_deadline_s` needs `cordoned: true`: an open node cannot be drained")
        return self


class NodeListResponse(BaseModel):
    """All nodes, by name."""

    items: list[NodeInfo]


class JoinNodeResponse(BaseModel):
    """The credentials of a node that has just joined."""

    node_name: str
    credentials: str = Field(
        description="Encrypted with a key from the secret of the join token, which the gateway does not know"
    )
