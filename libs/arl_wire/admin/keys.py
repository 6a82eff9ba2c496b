"""API keys for administrators. The key itself is shown only once, when it is created."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from arl_wire.actions.action import Name

__all__ = ["ApiKey", "CreateKeyRequest", "CreateKeyResponse", "KeyListResponse", "KeyScope"]

KEY_FORM = r"^tk_[A-Za-z0-9_-]{43}$"
"""Form of a key: 32 random bytes in URL-safe base64, without padding."""

KeyScope = Literal["actions:read", "actions:write", "actions:*", "admin:read", "admin:write", "admin:*"]
"""Scopes of a key: `write` includes `read` of its area, `*` is everything in its area."""


class CreateKeyRequest(BaseModel):
    """A new key. It belongs to one project and has no access to others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: Name | None = Field(
        default=None,
        description="Project of the key. Absent: the caller's project. The name of a new project creates it; this"
        " needs a key of project `default` with `admin:*`. The first key of a new project needs"
        " `admin:write` or `admin:*` in `scopes`, because only it can create further keys",
    )
    scopes: Annotated[list[KeyScope], Field(min_length=1, max_length=6)] | None = Field(
        default=None,
        description="Scopes of the key. Absent: `actions:write`, or `actions:*` and `admin:*` for the first key of"
        " a new project",
    )
    expires_in_s: int | None = Field(
        default=None, ge=1, le=3650 * 86400, description="Seconds until the key expires. Absent: it does not expire"
    )
    key: str | None = Field(
        default=None,
        pattern=KEY_FORM,
        repr=False,
        description="The key itself, if it must be the same in several cells: `tk_` and 43 URL-safe characters from 32"
        " random bytes. It needs `admin:*`. A repeated request with the same key returns the existing key, or 409 if"
        " that has another project, other scopes or another expiry, was revoked or has expired. Absent: the"
        " gateway draws a key",
    )


class ApiKey(BaseModel):
    """The metadata of a key. The key itself cannot be recovered."""

    id: int
    project: str
    prefix: str = Field(description="First characters of the key")
    fingerprint: str = Field(
        default="",
        description="First 16 hexadecimal digits of the key's SHA-256. The same key has the same fingerprint in all"
        " cells",
    )
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
