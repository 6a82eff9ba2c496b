"""Node pools: nodes of one kind that an engine starts and stops, as the controller of the pool publishes them."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, StringConstraints, model_validator

from arl_wire.validation import StrictModel

__all__ = ["POOL_LEASE_S", "PoolInfo", "PoolListResponse", "PoolName", "PublishPoolRequest", "ScalingDecisionName"]

POOL_LEASE_S = 10.0
"""Seconds for which a controller owns its pool after each publication."""
MAX_POOL_NODES = 500
"""Maximum number of nodes of a pool. A cell has at most 500 nodes."""

PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$", max_length=40)]
ControllerId = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]+$")]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]+$")]
ReasonText = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]
NodeCount = Annotated[int, Field(ge=0, le=MAX_POOL_NODES)]
NodeKindName = Literal["cpu", "gpu", "api"]
ScalingDecisionName = Literal["hold", "scale_up", "scale_down"]


class PublishPoolRequest(StrictModel):
    """The state of a pool, published by its controller, and the renewal of the controller's lease."""

    controller: ControllerId = Field(description="Unique id of the controller process")
    lease_s: float = Field(
        default=POOL_LEASE_S,
        ge=0,
        le=60,
        allow_inf_nan=False,
        description="Seconds for which the pool belongs to this controller. 0 gives the pool up",
    )
    engine: str = Field(min_length=1, max_length=40, pattern=r"^[a-z][a-z0-9-]*$", description="Name of the engine")
    kind: NodeKindName = Field(description="Kind of the nodes")
    min_nodes: NodeCount = Field(description="Minimum number of nodes")
    max_nodes: NodeCount = Field(description="Maximum number of nodes")
    cores_per_node: float | None = Field(
        default=None, gt=0, le=100_000, allow_inf_nan=False, description="Cores of each node. Absent if unknown"
    )
    wanted: NodeCount = Field(description="Number of nodes that the controller wants")
    present: int = Field(ge=0, le=10_000, description="Number of nodes that the engine has, draining nodes included")
    ready: int = Field(ge=0, le=10_000, description="Number of nodes that are alive and accept new actions")
    draining: list[NodeName] = Field(
        default_factory=list, max_length=MAX_POOL_NODES, description="Nodes that the controller drains"
    )
    decision: ScalingDecisionName = Field(default="hold", description="Last decision")
    reason: ReasonText = Field(default="", description="Reason for the last decision")

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_nodes < self.min_nodes:
            raise ValueError("max_nodes must not be below min_nodes")
        return self


class PoolInfo(BaseModel):
    """A pool and the last decision of its controller."""

    name: str
    kind: str
    engine: str
    min_nodes: int
    max_nodes: int
    cores_per_node: float | None = None
    wanted: int = Field(description="Number of nodes that the controller wants")
    present: int = Field(description="Number of nodes that the engine has, draining nodes included")
    ready: int = Field(description="Number of nodes that are alive and accept new actions")
    draining: list[str] = Field(description="Nodes that the controller drains")
    decision: str = Field(description="Last decision: `hold`, `scale_up` or `scale_down`")
    reason: str = Field(description="Reason for the last decision")
    decided_at: datetime = Field(description="Time at which the wanted number last changed")
    updated_at: datetime = Field(description="Time of the last publication")
    controller: str = Field(description="Id of the controller that published last")
    controlled: bool = Field(description="True if the lease of this controller is valid")


class PoolListResponse(BaseModel):
    """All pools, by name."""

    items: list[PoolInfo]
