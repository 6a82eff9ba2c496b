"""Files of a persistent environment, for clients."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field

__all__ = ["FileEntry", "FileKind", "FileListResponse", "UploadArchiveResponse"]


class FileKind(StrEnum):
    """The kinds of entries in a file tree."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"
    """A pipe, a socket or a device; archives leave it out."""


class FileEntry(BaseModel):
    """An entry in an environment's file tree."""

    path: str = Field(
        description="Path relative to the requested directory. Bytes that are not UTF-8 are written as \\xNN"
    )
    type: FileKind
    size: int = Field(description="Size of a file in bytes; 0 for other kinds")
    mode: int = Field(description="Permission bits as a number")
    modified_at: datetime
    target: str | None = Field(default=None, description="Target of a symbolic link")


class FileListResponse(BaseModel):
    """A page of entries by name, directories before their contents. `next_cursor` is absent on the last page."""

    items: list[FileEntry]
    next_cursor: str | None = None


class UploadArchiveResponse(BaseModel):
    """The number of members and bytes that an archive added."""

    members: int
    bytes: int
