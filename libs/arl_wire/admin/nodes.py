"""Nodes for operators."""

from datetime import datetime
from typing import Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["ChangeNodeRequest", "EnforcementStatus", "NodeInfo", "NodeListResponse", "NodeTemplate"]


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
    digest: str = Field(description="Of the image that it was made from")
    bytes: int


class NodeInfo(BaseModel):
    name: str
    kind: str
    driver: str
    epoch: UUID
    capacity: dict[str, int]
    registered_at: datetime
    last_heartbeat_at: datetime
    alive: bool
    cordoned: bool = Field(description="No environment and no action outside of one is placed there any more")
    drain_deadline_at: datetime | None = Field(
        default=None, description="When what is left there is ended; absent unless the node is being emptied"
    )
    drained: bool = Field(default=False, description="It was to be emptied, and nothing is left on it")
    running: int = Field(description="Actions that are granted or running there")
    allocated_cpu_milli: int = Field(default=0, description="Milli-cores that these have")
    environments: int
    enforced: list[EnforcementStatus]
    templates: list[NodeTemplate] = []


class ChangeNodeRequest(BaseModel):
    """A request to cordon, drain or reopen a node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cordoned: bool = Field(
        description="true: nothing new is placed there, while environments that live there go on. false: it is open"
        " again, and is not being emptied any more"
    )
    drain_deadline_s: float | None = Field(
        default=None,
        ge=0,
        le=30 * 86_400,
        description="Empty the node: trajectories that live there have so many seconds to end. What is left then is"
        " ended: actions go back to the queue as their `retries` allow, environments are lost (`environment_lost`)",
    )

    @model_validator(mode="after")
    def _check_drain_needs_cordon(self) -> Self:
        if self.drain_deadline_s is not None and not self.cordoned:
            raise ValueError("a node that is open is not emptied: `drain_deadline_s` goes with `cordoned: true`")
        return self


class NodeListResponse(BaseModel):
    items: list[NodeInfo]
