"""Nodes as operators see them."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel

__all__ = ["Enforced", "Node", "NodeList"]


class Enforced(BaseModel):
    """One kind of wall, found by trying it at the node's start."""

    name: str
    level: Literal["enforced", "best_effort", "absent"]
    mechanism: str
    reason: str = ""
    fix: str = ""


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


class NodeList(BaseModel):
    items: list[Node]
