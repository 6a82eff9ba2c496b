"""What the gateway asks of admission about nodes."""

from pydantic import BaseModel

__all__ = ["InternalChangeNodeRequest", "RemoveNodeResponse", "RemoveNodeRequest"]


class InternalChangeNodeRequest(BaseModel):
    """Close a node to what is new, or open it again; with a deadline, empty it until then."""

    name: str
    cordoned: bool
    drain_deadline_s: float | None = None


class RemoveNodeRequest(BaseModel):
    name: str


class RemoveNodeResponse(BaseModel):
    """Whether it is gone, or what keeps it; neither where there is no such node."""

    removed: bool
    kept_by: str | None = None
