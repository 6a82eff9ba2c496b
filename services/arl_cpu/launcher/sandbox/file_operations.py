"""Operations on the files of living environments, each in a separate process with its own connection.

The launcher never handles the bytes of an archive: it has the process forked, passes it the connection and waits.
"""

import json
import os
import signal
import socket
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from arl_core.domain.model import Fence
from arl_cpu.contract.launcher_protocol import encode_frame
from arl_cpu.launcher.files.file_tree import FileErrorCode
from arl_cpu.launcher.linux.event_loop import LoopTimer
from arl_cpu.launcher.sandbox.environment import SandboxEnvironment
from arl_cpu.launcher.sandbox.sandbox import Sandbox
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost

__all__ = ["FileOperationRunner"]

_WRITABLE_DIRECTORIES = ("workspace", "tmp")
"""Directories that are writable without template layers. Shared memory is not a file."""
_PARTIAL_SCOPE = {"whole": False, "only": None, "digest": None}
_BLOCK = 1 << 20
_MAX_REQUEST_BYTES = 64 << 10
_EXIT_GRACE_S = 3.0
"""Seconds after the time limit: a process that waits for a client that stopped reading cannot report its timeout."""


class FileOperationRunner:
    """The file operations of all environments, at most one in each."""

    def __init__(self, host: SandboxHost) -> None:
        self._host = host
        self._operations: dict[Fence, _ActiveFileOperation] = {}

    def start(
        self, connection: socket.socket, fence: Fence, environment: SandboxEnvironment | None, request: dict[str, Any]
    ) -> None:
        """Start an operation. All results go to the connection; when the connection ends, the process ends."""
        if len(json.dumps(request)) > _MAX_REQUEST_BYTES:
            _refuse_connection(
                connection, "invalid", f"the request of a file operation must have at most {_MAX_REQUEST_BYTES} bytes"
            )
        elif environment is None:
            _refuse_connection(connection, "lost", "the environment no longer exists")
        elif (found := environment.idle_sandbox) is None or found[0].workers:
            _refuse_connection(connection, "busy", "another operation or action is running in the environment")
        else:
            cell, workspace = found
            work = _ActiveFileOperation(connection, cell, environment.spec.id, request["op"])
            place: dict[str, Any] = {**_PARTIAL_SCOPE, "workspace": workspace}
            if request.get("whole"):
                place = self._full_scope(cell)
            try:
                place["user"] = environment.user_of(request.get("user"))
            except ValueError as unknown:
                _refuse_connection(connection, "invalid", str(unknown))
                return
            wanted = {**request, **place, **self._sandbox_parameters(cell, environment.spec.disk_mib)}
            try:
                self._fork(fence, work, wanted)
                work.timeout_timer = self._host.loop.call_later(request["limit_s"] + _EXIT_GRACE_S, work.expire)
            except OSError as error:
                _refuse_connection(
                    connection, "unsupported", f"the files of the environment are not accessible: {error}"
                )

    def is_active_in(self, environment: UUID) -> bool:
        """Return True if an operation runs in the environment."""
        return any(work.environment == environment for work in self._operations.values())

    def kill(self, fence: Fence) -> None:
        """Kill the operation of this fence, if it runs."""
        if (work := self._operations.get(fence)) is not None:
            work.kill()

    def kill_all(self) -> None:
        """Kill all operations."""
        for work in self._operations.values():
            work.kill()

    def _full_scope(self, sandbox: Sandbox) -> dict[str, Any]:
        """Return the directory that contains all writable files, and the parts of it to process."""
        root = "/" if self._host.driver.dies_with_init else str(sandbox.work_dir)
        only = _WRITABLE_DIRECTORIES if sandbox.template_digest is None else None
        return {"workspace": root, "whole": True, "only": only, "digest": sandbox.template_digest}

    def _sandbox_parameters(self, sandbox: Sandbox, disk_mib: int) -> dict[str, Any]:
        return {
            "join": list(sandbox.cgroup.worker_join_files),
            "host_id": sandbox.own_uid,
            "disk_mib": disk_mib,
            "has_cgroup": self._host.cgroup_tree is not None,
        }

    def _fork(self, fence: Fence, operation: "_ActiveFileOperation", request: dict[str, Any]) -> None:
        mounts, stream = operation.sandbox.open_mounts(), os.dup(operation.connection.fileno())
        self._host.zygote.fork_worker(stream, mounts, request, partial(self._worker_created, fence, operation))
        self._operations[fence] = operation
        operation.sandbox.workers.add(operation)

    def _worker_created(self, fence: Fence, operation: "_ActiveFileOperation", pid: int, error: str) -> None:
        if pid:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                pid, error = 0, "it ended at once"
        if not pid:
            _send_error(
                operation.connection,
                "unsupported",
                f"the process for the environment's files could not be created: {error}",
            )
            self._remove(fence, operation)
            return
        operation.pid = pid
        self._host.workers[pid] = partial(self._worker_ended, fence, operation)
        if operation.is_killed:
            operation.kill()

    def _worker_ended(self, fence: Fence, operation: "_ActiveFileOperation", status: int) -> None:
        # After an output that broke off within a chunk the client could not parse an error.
        if os.WIFSIGNALED(status) and not operation.is_killed and operation.op != "pack":
            message = f"the process of the file operation was ended by signal {os.WTERMSIG(status)}"
            _send_error(operation.connection, operation.cause_of_death(), message)
            self._drain_connection(operation.connection.dup())
        self._remove(fence, operation)

    def _drain_connection(self, connection: socket.socket) -> None:
        """Discard input until the client stops writing, so that it can read the error before a reset."""
        connection.setblocking(False)
        connection.shutdown(socket.SHUT_WR)

        def discard() -> None:
            """Read and discard input; close the connection at its end."""
            with suppress(BlockingIOError):
                try:
                    if connection.recv(_BLOCK):
                        return
                except ConnectionError:
                    pass  # it has closed the connection
                self._host.loop.unwatch(connection.fileno())
                connection.close()

        self._host.loop.watch(connection.fileno(), discard)

    def _remove(self, fence: Fence, operation: "_ActiveFileOperation") -> None:
        del self._operations[fence]
        operation.sandbox.workers.discard(operation)
        operation.sandbox.usage = None
        operation.connection.close()
        if operation.timeout_timer is not None:
            operation.timeout_timer.cancel()


class _ActiveFileOperation:
    def __init__(self, connection: socket.socket, sandbox: Sandbox, environment: UUID, op: str) -> None:
        self.connection, self.sandbox, self.environment, self.op = connection, sandbox, environment, op
        self.oom_kills = sandbox.cgroup.usage().oom_kills
        self.pid: int | None = None
        self.is_killed = self.is_timed_out = False
        self.timeout_timer: LoopTimer | None = None

    def cause_of_death(self) -> FileErrorCode:
        """Return the error code for a process that was killed."""
        if self.is_timed_out:
            return "time"
        return "memory" if self.sandbox.cgroup.usage().oom_kills > self.oom_kills else "conflict"

    def expire(self) -> None:
        """End the operation because of its time limit."""
        self.is_timed_out = True
        self._kill_process()

    def kill(self) -> None:
        """End the operation without an error for its client."""
        self.is_killed = True
        self._kill_process()

    def _kill_process(self) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):  # it has ended, which is reported separately
                os.kill(self.pid, signal.SIGKILL)


def _refuse_connection(connection: socket.socket, code: str, message: str) -> None:
    _send_error(connection, code, message)
    connection.close()


def _send_error(connection: socket.socket, code: str, message: str) -> None:
    """Send an error without blocking. A client that does not read has disconnected."""
    with suppress(OSError):
        connection.send(encode_frame({"refused": code, "message": message}), socket.MSG_DONTWAIT)
