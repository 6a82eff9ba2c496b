"""Code contexts of a sandbox, and the cells that run in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any

from arl_gateway.compat.e2b.guest.accounts import Account
from arl_gateway.compat.e2b.guest.event_buffer import EventBuffer
from arl_gateway.compat.e2b.guest.file_operations import GuestError, resolve_path

__all__ = ["CellExecution", "CodeContext"]

READ_BYTES = 1 << 16
LANGUAGES = ("python", "bash")


class CellExecution(EventBuffer):
    """A cell that waits or runs."""

    def __init__(self, pid: int, request: dict[str, Any]) -> None:
        super().__init__(pid)
        self.request = request

    def finish(self) -> None:
        """Add the end event."""
        self.has_ended, self.ended_at = True, time.monotonic()
        self.add({"end": {}})


class CodeContext(EventBuffer):
    """A process that runs cells one after another. It needs cores only while a cell waits or runs."""

    is_counted = False

    def __init__(self, pid: int, language: str, cwd: str, account: Account, env: dict[str, str]) -> None:
        super().__init__(pid)
        if language not in LANGUAGES:
            raise GuestError("unimplemented", f"not supported by this server: language '{language[:64]}'")
        self.id, self.language = str(uuid.uuid4()), language
        self.cwd = resolve_path(cwd, account.home)
        self._env, self._account = env, account
        self.waiting: deque[CellExecution] = deque()
        """The running cell and those behind it."""
        self._partial = b""
        self.start()

    def start(self) -> None:
        """Start the process. Raises GuestError."""
        if not os.path.isdir(self.cwd):
            raise GuestError("invalid_argument", f"cwd '{self.cwd}' does not exist or is not a directory")
        messages, target = os.pipe()
        program = str(Path(__file__).with_name("kernel.py"))
        self._child = subprocess.Popen(
            [sys.executable, program, str(target)], cwd=self.cwd, env=self._env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True, pass_fds=(target,),
            **self._account.start_options(),
        )  # fmt: skip
        os.close(target)
        self.outputs = {messages: "messages"}
        for stream, name in ((self._child.stdout, "stdout"), (self._child.stderr, "stderr")):
            assert stream is not None
            self.outputs[os.dup(stream.fileno())] = name
            stream.close()
        for fd in self.outputs:
            os.set_blocking(fd, False)
        self._partial = b""

    def submit(self, cell: CellExecution) -> None:
        """Run a cell after the earlier ones."""
        self.waiting.append(cell)
        if len(self.waiting) == 1:
            self._run_first()

    def _run_first(self) -> None:
        cell = self.waiting[0]
        data = json.dumps({"language": self.language, **cell.request}).encode() + b"\n"
        stdin = self._child.stdin
        assert stdin is not None
        try:
            while data:
                data = data[stdin.write(data) or 0 :]
        except OSError:
            return  # the end of the process is reported when its outputs close

    def may_read(self) -> bool:
        """Return True if the running cell has room for more output."""
        return not self.waiting or self.waiting[0].may_read()

    def read_output(self, fd: int) -> None:
        """Read messages of the running cell, or output of programs that it started."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        name = self.outputs[fd]
        if not data:
            os.close(fd)
            del self.outputs[fd]
            if name == "messages":
                self._report_death()
        elif name != "messages":
            text = data.decode(errors="replace")
            self._add({"type": name, "text": text, "timestamp": time.time_ns()}, len(data))
        else:
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line), len(line))

    def _take(self, message: dict[str, Any], size: int) -> None:
        if message["type"] != "end_of_execution":
            self._add(message, size)
            return
        self._drain_programs()
        self._add(message, size)
        if self.waiting:
            self.waiting.popleft().finish()
        if self.waiting:
            self._run_first()

    def _drain_programs(self) -> None:
        """Read what programs of the cell have written before its end."""
        for fd, name in list(self.outputs.items()):
            if name != "messages":
                self.read_output(fd)

    def _add(self, message: dict[str, Any], size: int) -> None:
        if self.waiting:
            self.waiting[0].add({"line": message}, size)

    def _report_death(self) -> None:
        """End all cells with an error, and start the process again."""
        self._child.wait()
        cells, self.waiting = list(self.waiting), deque()
        value = f"the process of the context ended with {self._child.returncode}"
        for cell in cells:
            cell.add({"line": {"type": "error", "name": "KernelDied", "value": value, "traceback": value}})
            cell.add({"line": {"type": "end_of_execution"}})
            cell.finish()
        self.close()
        self.start()

    def interrupt(self, cell: CellExecution) -> None:
        """Interrupt a cell, or drop it if it waits."""
        if self.waiting and self.waiting[0] is cell:
            os.killpg(self._child.pid, signal.SIGINT)
        elif cell in self.waiting:
            self.waiting.remove(cell)
            cell.finish()

    def restart(self) -> None:
        """Drop all variables and end all cells."""
        self._child.kill()
        self._report_death()

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()
        for fd in list(self.outputs):
            os.close(fd)
        self.outputs = {}
