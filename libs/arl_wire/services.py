"""Reward services, as clients see them."""

from pydantic import BaseModel, Field

from arl_core.residency import Residence

__all__ = ["RewardService", "RewardServiceList", "ServiceOnNode"]


class ServiceOnNode(BaseModel):
    """One node's copy of a service."""

    node: str
    available: bool = Field(description="The node lives, and takes new actions")
    state: Residence = Field(description="Where its weights are")
    device: str
    slots: int = Field(description="Actions that may be in flight")
    in_flight: int
    batches: int = Field(description="Since the start of its manager")
    scores: int = Field(description="Items scored since then")
    health: str = Field(description="`ok`, or what went wrong with the last batch")


class RewardService(BaseModel):
    """A model that scores items. Actions of kind `score` name it."""

    name: str
    kind: str = Field(description="`similarity`: cosine of the embeddings of text and reference")
    model: str
    max_tokens: int = Field(description="A longer text is cut, and its score says so")
    available: bool = Field(description="A node with it lives; otherwise actions wait for one")
    nodes: list[ServiceOnNode]


class RewardServiceList(BaseModel):
    items: list[RewardService]
