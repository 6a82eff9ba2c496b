"""The audit log: which API key changed what, and when."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

__all__ = ["AuditLogEntry", "AuditLogResponse", "AuditVerb"]

AuditVerb = Annotated[str, StringConstraints(min_length=3, max_length=64, pattern=r"^[a-z_]+\.[a-z_]+$")]
"""The kind of resource and the operation, such as `queue.change`."""


class AuditLogEntry(BaseModel):
    """A change by an administrator."""

    id: int = Field(description="Id of the entry; a later entry has a higher id")
    at: datetime = Field(description="Time of the change, by the database's clock")
    project: str | None = Field(default=None, description="Name of the project that the change belongs to")
    api_key_id: int | None = Field(default=None, description="The API key that made the change")
    verb: str = Field(description="The kind of resource and the operation, such as `queue.change`")
    target: str = Field(description="The resource that was changed, such as `queue:ai-coding`")
    detail: dict[str, Any] = Field(description="The fields of the request, as the operation recorded them")


class AuditLogResponse(BaseModel):
    """A page of changes, newest first.

    `next_before` is absent on the last page; pass it as `before` to read the next page.
    """

    items: list[AuditLogEntry]
    next_before: int | None = None
