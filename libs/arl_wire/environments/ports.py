"""Signed URLs of ports of environments."""

from datetime import datetime

from pydantic import BaseModel, Field

from arl_wire.validation import StrictModel

__all__ = ["MAX_URL_LIFETIME_S", "SignPortRequest", "SignedPort"]

MAX_URL_LIFETIME_S = 30 * 86400


class SignPortRequest(StrictModel):
    """A request for a URL by which clients without an API key reach one port."""

    lifetime_s: int = Field(
        default=3600, ge=1, le=MAX_URL_LIFETIME_S, description="Seconds until the URL ends. It also ends with its key"
    )


class SignedPort(BaseModel):
    """A URL by which clients without an API key reach one port of an environment."""

    path: str = Field(
        description="Path of the URL, which ends with a slash. Append the path for the server. Everyone who has it can"
        " use the port"
    )
    expires_at: datetime = Field(description="Time at which the URL ends")
