"""The parts of an archive's format that packing and extraction share."""

import errno
from dataclasses import dataclass

__all__ = [
    "BLOCK",
    "DISK_FULL",
    "LAYER_MARK",
    "MAX_MEMBERS",
    "MOUNT_POINTS",
    "OPAQUE",
    "OWNERS",
    "REMOVED",
    "TEMPLATE",
    "ArchiveSize",
]

MAX_MEMBERS = 65_536
"""Largest number of files that an environment can contain."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
BLOCK = 256 << 10
LAYER_MARK, REMOVED, OPAQUE = "TANGRAM.layer", "removed", "opaque"
TEMPLATE = "TANGRAM.template"
OWNERS = "TANGRAM.owners"
"""Header of a snapshot whose members have owners."""
MOUNT_POINTS = ("dev", "proc", "sys")
"""Mount points in an environment."""


@dataclass(slots=True)
class ArchiveSize:
    """The size of an archive: its members and the bytes of its files."""

    members: int = 0
    bytes: int = 0
    left_out: int = 0
    """Pipes, sockets and devices, which are omitted."""
    names: int = 0
    """Bytes of the paths and of link targets."""
