"""API keys for administrators. The key itself is shown only once, when it is created."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from arl_wire.actions.action import Name

__all__ = ["ApiKey", "CreateKeyRequest", "CreateKeyResponse", "KeyListResponse", "KeyScope"]

KeyScope = Literal["actions:read", "actions:write", "actions:*", "admin:read", "admin:write", "admin:*"]
"""Scopes of a key: `write` includes `read` of its area, `*` is everything in its area."""


class CreateKeyRequest(BaseModel):
    """A new key. It belongs to one project and has no access to others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: Name | None = Field(
        default=None,
        description="Absent: the caller's own. The name of a new project makes it; that takes `admin:*` of the"
        " project `default`, and `admin:write` or `admin:*` among `scopes`: nobody else could make it further keys",
    )
    scopes: Annotated[list[KeyScope], Field(min_length=1, max_length=6)] | None = Field(
        default=None, description="Absent: `actions:write`; of a new project's first key all, `actions:*` and `admin:*`"
    )
    expires_in_s: int | None = Field(default=None, ge=1, le=3650 * 86400, description="Absent: it does not expire")


class ApiKey(BaseModel):
    """The metadata of a key. The key itself cannot be recovered."""

    id: int
    project: str
    prefix: str = Field(description="Its first characters")
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class CreateKeyResponse(ApiKey):
    """The new key. No other response contains it."""

    key: str = Field(repr=False)


class KeyListResponse(BaseModel):
    """A page of keys, newest first. `next_cursor` is absent on the last page."""

    items: list[ApiKey]
    next_cursor: int | None = None
