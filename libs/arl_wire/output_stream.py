"""Bytes that something put out, as clients see them."""

from pydantic import BaseModel, Field

__all__ = ["OutputStream"]


class OutputStream(BaseModel):
    """The first MiB of a stream and how much there was."""

    text: str = Field(default="", description="UTF-8; bytes that are not are written as \\xNN")
    base64: str | None = Field(default=None, description="The same bytes, only where they are not valid UTF-8")
    total_bytes: int = 0
    truncated: bool = False
