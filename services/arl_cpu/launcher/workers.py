"""Work on the files of living environments: each piece in a process of its own, with its own connection.

Not a byte of an archive passes through the launcher: it has the process forked, hands it the connection and waits.
"""

import json
import os
import signal
import socket
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from arl_core.fence import Fence

from .cells import Cell, Host
from .environment import Environment
from .loop import Timer
from .protocol import encode_frame
from .trees import Code

__all__ = ["Workers"]

_WRITTEN = ("workspace", "tmp")
"""What can be written where a template brings no layers; shared memory is no file."""
_PART = {"whole": False, "only": None, "digest": None}
_BLOCK = 1 << 20
_MOST_ASKED = 64 << 10
_ENDS_WITHIN_S = 3.0
"""After its time: a process that waits for who does not read any more cannot say that its time is up."""
_AT_WORK_MILLI = 1000
"""The processor that unpacking may take: the environment's own cgroup bounds it, beside its frozen processes."""


class Workers:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._works: dict[Fence, _Work] = {}

    def begin(self, asker: socket.socket, fence: Fence, environment: Environment | None, asked: dict[str, Any]) -> None:
        """The asker hears of all that comes of it; the end of the connection is the end of the process."""
        if len(json.dumps(asked)) > _MOST_ASKED:
            _refuse(asker, "invalid", f"what is asked for is longer than {_MOST_ASKED} bytes")
        elif environment is None:
            _refuse(asker, "lost", "the environment is not there any more")
        elif (found := environment.idle_cell) is None or found[0].workers:
            _refuse(asker, "busy", "something else is at work in the environment")
        else:
            cell, workspace = found
            work = _Work(asker, cell, environment.spec.id, asked["op"])
            place = self._whole(cell) if asked.get("whole") else {**_PART, "workspace": workspace}
            wanted = {**asked, **place, **self._about(cell, environment.spec.disk_mib)}
            try:
                self._fork(fence, work, wanted)
                work.overdue = self._host.loop.after(asked["limit_s"] + _ENDS_WITHIN_S, work.expire)
            except OSError as error:
                _refuse(asker, "unsupported", f"nothing can be done with its files: {error}")

    def is_at(self, environment: UUID) -> bool:
        return any(work.environment == environment for work in self._works.values())

    def kill(self, fence: Fence) -> None:
        if (work := self._works.get(fence)) is not None:
            work.kill()

    def kill_all(self) -> None:
        for work in self._works.values():
            work.kill()

    def _whole(self, cell: Cell) -> dict[str, Any]:
        """Where all lies that can be written, and what of that place it is."""
        root = "/" if self._host.driver.ends_with_first else str(cell.work_dir)
        only = None if cell.template_digest is not None else _WRITTEN
        return {"workspace": root, "whole": True, "only": only, "digest": cell.template_digest}

    def _about(self, cell: Cell, disk_mib: int) -> dict[str, Any]:
        return {
            "join": list(cell.group.joined_by_workers),
            "host_id": cell.own_uid,
            "disk_mib": disk_mib,
            "has_cgroup": self._host.tree is not None,
        }

    def _fork(self, fence: Fence, work: "_Work", wanted: dict[str, Any]) -> None:
        work.cell.group.grant(cpu_milli=_AT_WORK_MILLI, cores=())
        mounts, stream = work.cell.open_mounts(), os.dup(work.asker.fileno())
        self._host.zygote.work(stream, mounts, wanted, partial(self._made, fence, work))
        self._works[fence] = work
        work.cell.workers.add(work)

    def _made(self, fence: Fence, work: "_Work", pid: int, error: str) -> None:
        if pid:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                pid, error = 0, "it died at once"
        if not pid:
            _tell(work.asker, "unsupported", f"no process for the environment's files: {error}")
            self._forget(fence, work)
            return
        work.pid = pid
        self._host.workers[pid] = partial(self._ended, fence, work)
        if work.is_killed:
            work.kill()

    def _ended(self, fence: Fence, work: "_Work", status: int) -> None:
        # Where an output broke off in the middle of a chunk, nothing more could be understood.
        if os.WIFSIGNALED(status) and not work.is_killed and work.op != "pack":
            message = f"the process at work on the files was ended by signal {os.WTERMSIG(status)}"
            _tell(work.asker, work.cause_of_death(), message)
            self._linger(work.asker.dup())
        self._forget(fence, work)

    def _linger(self, asker: socket.socket) -> None:
        """Who still writes would be cut off before it has read why. What it writes until then is thrown away."""
        asker.setblocking(False)
        asker.shutdown(socket.SHUT_WR)

        def discard() -> None:
            with suppress(BlockingIOError):
                try:
                    if asker.recv(_BLOCK):
                        return
                except ConnectionError:
                    pass  # it has gone
                self._host.loop.unwatch(asker.fileno())
                asker.close()

        self._host.loop.watch(asker.fileno(), discard)

    def _forget(self, fence: Fence, work: "_Work") -> None:
        del self._works[fence]
        work.cell.workers.discard(work)
        work.cell.usage = None
        work.asker.close()
        if work.overdue is not None:
            work.overdue.cancel()


class _Work:
    def __init__(self, asker: socket.socket, cell: Cell, environment: UUID, op: str) -> None:
        self.asker, self.cell, self.environment, self.op = asker, cell, environment, op
        self.oom_kills = cell.group.usage().oom_kills
        self.pid: int | None = None
        self.is_killed = self.is_overdue = False
        self.overdue: Timer | None = None

    def cause_of_death(self) -> Code:
        if self.is_overdue:
            return "time"
        return "memory" if self.cell.group.usage().oom_kills > self.oom_kills else "conflict"

    def expire(self) -> None:
        self.is_overdue = True
        self._end()

    def kill(self) -> None:
        self.is_killed = True
        self._end()

    def _end(self) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):  # it has ended, which is being told
                os.kill(self.pid, signal.SIGKILL)


def _refuse(asker: socket.socket, code: str, message: str) -> None:
    _tell(asker, code, message)
    asker.close()


def _tell(asker: socket.socket, code: str, message: str) -> None:
    """What fits at once: who does not read has gone."""
    with suppress(OSError):
        asker.send(encode_frame({"refused": code, "message": message}), socket.MSG_DONTWAIT)
