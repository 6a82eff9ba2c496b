"""Watches of directories with inotify."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

from arl_gateway.compat.e2b.guest.event_buffer import EventBuffer
from arl_gateway.compat.e2b.guest.file_operations import OPERATIONS, GuestError

__all__ = ["DirectoryWatch"]

READ_BYTES = 1 << 16
EVENT = struct.Struct("iIII")
MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
IS_DIRECTORY = 0x40000000
MASK = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE
TYPES = {
    CREATE: "EVENT_TYPE_CREATE",
    MOVED_TO: "EVENT_TYPE_CREATE",
    MODIFY: "EVENT_TYPE_WRITE",
    DELETE: "EVENT_TYPE_REMOVE",
    MOVED_FROM: "EVENT_TYPE_RENAME",
    ATTRIB: "EVENT_TYPE_CHMOD",
}
MAX_EVENTS = 10_000
"""Events that wait for a client. The oldest are dropped."""
LIBC = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch(EventBuffer):
    """The changes in a directory. They can only happen while an action runs, so the watch itself needs no cores."""

    is_counted = False

    def __init__(self, pid: int, path: str, *, is_recursive: bool, has_entries: bool) -> None:
        super().__init__(pid)
        if not os.path.isdir(path):
            os.stat(path)
            raise GuestError("invalid_argument", f"path is not a directory: {path}")
        self.path, self.is_recursive, self.has_entries = path, is_recursive, has_entries
        self.directories: dict[int, str] = {}
        """Paths relative to the watched directory, by watch descriptor."""
        self.fd = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.outputs[self.fd] = "inotify"
        self._add_directory("")

    def _add_directory(self, relative: str) -> None:
        path = os.path.join(self.path, relative)
        descriptor = LIBC.inotify_add_watch(self.fd, os.fsencode(path), MASK)
        if descriptor < 0:
            return
        self.directories[descriptor] = relative
        if not self.is_recursive:
            return
        try:
            children = [each.name for each in os.scandir(path) if each.is_dir(follow_symlinks=False)]
        except OSError:
            return
        for name in children:
            self._add_directory(os.path.join(relative, name))

    def read_output(self, fd: int) -> None:
        """Read events of the kernel."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        while data:
            descriptor, mask, _, length = EVENT.unpack_from(data)
            name = os.fsdecode(data[EVENT.size : EVENT.size + length].rstrip(b"\0"))
            data = data[EVENT.size + length :]
            self._add_change(descriptor, mask, name)

    def _add_change(self, descriptor: int, mask: int, name: str) -> None:
        kind = next((found for bit, found in TYPES.items() if mask & bit), None)
        if kind is None or descriptor not in self.directories or not name:
            return
        relative = os.path.join(self.directories[descriptor], name)
        change: dict[str, Any] = {"name": relative, "type": kind}
        if self.has_entries:
            try:
                operation: Any = OPERATIONS["stat"]
                change["entry"] = operation(os.path.join(self.path, relative))["entry"]
            except OSError:
                pass
        self.add({"change": change})
        while len(self.events) > MAX_EVENTS:
            self.events.popleft()
        if self.is_recursive and mask & IS_DIRECTORY and mask & (CREATE | MOVED_TO):
            self._add_directory(relative)

    def drain(self) -> list[dict[str, Any]]:
        """Return and drop the changes so far, those that the kernel still has included."""
        self.read_output(self.fd)
        found = [event["change"] for _, _, event in self.events]
        self.events.clear()
        return found

    def close(self) -> None:
        """End the watch."""
        self.outputs.clear()
        os.close(self.fd)
