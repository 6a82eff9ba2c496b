"""Nodes as operators see them."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

__all__ = ["Enforced", "Node", "NodeList", "NodeTemplate"]


class Enforced(BaseModel):
    """One kind of wall, found by trying it at the node's start."""

    name: str
    level: Literal["enforced", "best_effort", "absent"]
    mechanism: str
    reason: str = ""
    fix: str = ""


class NodeTemplate(BaseModel):
    """A file tree that environments can begin with there, besides `host`."""

    name: str
    digest: str = Field(description="Of the image that it was made from")
    bytes: int


class Node(BaseModel):
    name: str
    kind: str
    driver: str
    epoch: UUID
    capacity: dict[str, int]
    registered_at: datetime
    last_beat_at: datetime
    alive: bool
    cordoned: bool
    running: int
    environments: int
    enforced: list[Enforced]
    templates: list[NodeTemplate] = []


class NodeList(BaseModel):
    items: list[Node]
