"""Files of a persistent environment, for clients."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field

__all__ = ["FileEntry", "FileKind", "FileListResponse", "UploadArchiveResponse"]


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"
    """A pipe, a socket or a device; archives leave it out."""


class FileEntry(BaseModel):
    """An entry in an environment's file tree."""

    path: str = Field(description="From the directory that was asked for; bytes that are not UTF-8 as \\xNN")
    type: FileKind
    size: int = Field(description="Bytes of a file, else 0")
    mode: int = Field(description="Permission bits")
    modified_at: datetime
    target: str | None = Field(default=None, description="Where a symbolic link says that it leads")


class FileListResponse(BaseModel):
    """A page of entries by name, directories before their contents. `next_cursor` is absent on the last page."""

    items: list[FileEntry]
    next_cursor: str | None = None


class UploadArchiveResponse(BaseModel):
    """The number of members and bytes that an archive added."""

    members: int
    bytes: int
