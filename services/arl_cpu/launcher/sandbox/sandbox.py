"""Sandboxes with an agent in its first stage of isolation, and a pool of prepared ones.

The slow part of an environment, its processes, namespaces, file tree and cgroup, does not depend on its user. It is
done in advance. The sizes and the last stage of isolation follow when an environment takes the sandbox.
"""

import errno
import os
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from arl_cpu.launcher.files import workdir
from arl_cpu.launcher.linux.cgroups import Cgroup, CgroupUsage, NoCgroup, wait_until
from arl_cpu.launcher.linux.packet_channel import PacketChannel
from arl_cpu.launcher.linux.processes import ProcessInfo, all_processes, descendants
from arl_cpu.launcher.sandbox.environment_template import layers_message
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost, SandboxOwner, SandboxWorker
from arl_cpu.templates.template_store import OpenTemplate

__all__ = ["Sandbox", "SandboxPool"]

_FREEZE_LIMIT_S = 0.5
_REMOVE_RETRY_S = 0.05
_REFILL_S = 0.02
_REFILL_AFTER_FAILURE_S = 5.0


class Sandbox:
    """A sandbox, prepared some time after its creation. Raises OSError if creation fails."""

    def __init__(self, host: SandboxHost, owner: SandboxOwner, template: OpenTemplate | None = None) -> None:
        self._host, self.owner, self._template = host, owner, template
        self.is_prepared = False
        self.pid: int | None = None
        self.cgroup: Cgroup = NoCgroup()
        self.workers: set[SandboxWorker] = set()
        """Workers on its files. The sandbox is not removed before they have ended."""
        self.usage: CgroupUsage | None = None
        """Usage after the last attempt. While the sandbox is frozen, only file workers change it; they reset it to
        None.
        """
        self._mounts: int | None = None
        self._network: int | None = None
        self.number = host.take_number()
        self._first_id: int | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = PacketChannel(ours)
        try:
            if host.id_ranges is not None:
                self._first_id = host.id_ranges.take()
            if host.cgroup_tree is not None:
                self.cgroup = host.cgroup_tree.make(self.name)
            join_files, has_range = self.cgroup.join_files, self._first_id is not None
            host.zygote.fork_agent(theirs, self.host_id, join_files, self._created, has_range=has_range)
        except OSError:
            theirs.close()
            self.channel.close()
            self.cgroup.remove()
            self._release_ids()
            raise

    @property
    def name(self) -> str:
        """The name of its cgroup and its directory."""
        return f"e{self.number}"

    @property
    def host_id(self) -> int | None:
        """The uid of its agent on the host, or None without isolation, if it is the launcher's own."""
        if self._first_id is not None:
            return self._first_id
        if not self._host.driver.is_isolated:
            return None
        first = self._host.first_host_id
        return os.getuid() if first is None else first + self.number

    @property
    def own_uid(self) -> int | None:
        """The uid that only this environment has, or None without a range of uids."""
        return self.host_id if self._host.first_host_id is not None or self.has_users else None

    @property
    def has_users(self) -> bool:
        """True if it has root and other users, False if it has one user."""
        return self._first_id is not None

    @property
    def work_dir(self) -> Path:
        """The directory of its files, if they are not in a separate file system."""
        return self._host.work_dir / self.name

    @property
    def template_digest(self) -> str | None:
        """The digest of the template below the writable layer, or None for `host`."""
        return self._template.template.digest if self._template is not None else None

    def processes(self) -> list[ProcessInfo]:
        """Return every living process of it on the host, including its first one."""
        if self.pid is None:
            return []
        return [*descendants(self.pid), *(each for each in all_processes() if each.pid == self.pid)]

    def open_mounts(self) -> int | None:
        """Open its mount namespace, or return None if it has none. Raises OSError."""
        if not self._host.driver.dies_with_init:
            return None
        if self._mounts is not None:
            return os.dup(self._mounts)
        if self.pid is None:
            raise ProcessLookupError(errno.ESRCH, "the first process of the sandbox has ended")
        return os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def open_network(self) -> int:
        """Open its network namespace. Raises OSError."""
        if self._network is not None:
            return os.dup(self._network)
        if self.pid is None:
            raise ProcessLookupError(errno.ESRCH, "the first process of the sandbox has ended")
        return os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def kill(self) -> None:
        """Kill the sandbox. A pid namespace dies with its pid 1; without one, freeze and kill the processes."""
        if self.pid is None:
            return
        if not self._host.driver.dies_with_init:
            wait_until(self.freeze, _FREEZE_LIMIT_S)
        with suppress(OSError):  # pid 1 dies in any case
            os.kill(self.pid, signal.SIGKILL)
            self.cgroup.kill()

    def freeze(self) -> bool:
        """Freeze the sandbox. Return True if no process runs any more; otherwise call it again."""
        try:
            return self.cgroup.freeze()
        except OSError:
            return False

    def reaped(self) -> None:
        """Handle that its pid 1 was reaped."""
        self.pid = None
        self._unwatch_channel()
        if not self._host.driver.dies_with_init:
            self._host.kill_strays()
        self.owner.died()

    def remove(self, done: Callable[[], None]) -> None:
        """Free its resources on the host and call `done` when nothing is left."""
        for worker in tuple(self.workers):
            worker.kill()
        if self.workers or not self.cgroup.remove():
            with suppress(OSError):  # processes that were forked during the kill
                self.cgroup.kill()
            self._host.loop.call_later(_REMOVE_RETRY_S, lambda: self.remove(done))
            return
        self._unwatch_channel()
        self.channel.close()
        for namespace in (self._mounts, self._network):
            if namespace is not None:
                os.close(namespace)
        self._mounts = self._network = None
        if not self._host.driver.dies_with_init:
            workdir.remove(self.work_dir)
        self._release_ids()
        done()

    def _release_ids(self) -> None:
        self._host.used_numbers.discard(self.number)
        if self._first_id is not None and self._host.id_ranges is not None:
            self._host.id_ranges.release(self._first_id)

    def _created(self, pid: int, error: str) -> None:
        if pid == 0:
            self.owner.failed(error)
            return
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            self.owner.failed("the agent ended immediately")
            return
        self.pid = pid
        self._host.sandboxes[pid] = self
        self._host.loop.watch(self.channel.socket.fileno(), self._receive)
        self.owner.created()
        try:
            self._prepare(pid)
        except OSError:
            self.kill()  # the agent has ended; its death is handled like any other

    def _prepare(self, pid: int) -> None:
        said: dict[str, Any] = {"op": "prepare", "base_prefix": self._host.base_prefix}
        if self._template is None:
            self.channel.send(said)
            return
        said["layers"], copy = layers_message(self._template, pid)
        try:
            self.channel.send(said, [copy] if copy is not None else [])
        finally:
            if copy is not None:
                os.close(copy)

    def _receive(self) -> None:
        """Receive a message. A failure with one agent's message ends only that sandbox."""
        try:
            if (received := self.channel.receive()) is not None:
                self._handle(*received)
                return
        except Exception:  # noqa: BLE001 - any failure ends only this sandbox
            traceback.print_exc()
        self._unwatch_channel()
        self.kill()

    def _handle(self, message: dict[str, Any], files: list[int]) -> None:
        try:
            match message["op"]:
                case "prepared":
                    self.is_prepared = True
                    self._retain_namespaces()
                    self.owner.prepared()
                case "failed":
                    self.owner.failed(message["message"])
                case _:
                    self.owner.message_received(message, files)
        finally:
            for file in files:
                os.close(file)

    def _retain_namespaces(self) -> None:
        """Open the namespaces now: an ordinary user cannot once the process is no longer dumpable."""
        if self._host.driver.has_zygote_namespaces and os.geteuid() != 0:
            self._mounts, self._network = self.open_mounts(), self.open_network()

    def _unwatch_channel(self) -> None:
        if self.channel.socket.fileno() >= 0:
            self._host.loop.unwatch(self.channel.socket.fileno())


class SandboxPool:
    """A pool of prepared sandboxes."""

    def __init__(self, host: SandboxHost, size: int) -> None:
        self._host, self._size = host, size
        self._ready: deque[_PooledSandbox] = deque()
        self._is_filling = False
        self.is_ended = False
        self._done: Callable[[], None] = _do_nothing

    def acquire(self, owner: SandboxOwner) -> Sandbox:
        """Return a prepared `host` sandbox, else one in preparation, else a new one. Raises OSError."""
        if not self._ready:
            return self.create(owner)
        waiting = next((each for each in self._ready if each.sandbox.is_prepared), self._ready[0])
        self._ready.remove(waiting)
        self._write_ready_file()
        self._fill_later(_REFILL_S)
        waiting.sandbox.owner = owner
        return waiting.sandbox

    def create(self, owner: SandboxOwner, template: OpenTemplate | None = None) -> Sandbox:
        """Create a sandbox for this owner. Raises OSError."""
        return Sandbox(self._host, owner, template)

    def fill(self) -> None:
        """Fill the pool one by one, so that an action that starts meanwhile waits for one sandbox at most."""
        self._is_filling = False
        if self.is_ended or len(self._ready) >= self._size:
            return
        waiting = _PooledSandbox(self)
        try:
            waiting.sandbox = Sandbox(self._host, waiting)
        except OSError:
            self._fill_later(_REFILL_AFTER_FAILURE_S)
            return
        self._ready.append(waiting)
        self._write_ready_file()

    def end(self, done: Callable[[], None]) -> None:
        """Kill all pooled sandboxes and call `done` when nothing of them is left."""
        self.is_ended = True
        self._done = done
        for waiting in tuple(self._ready):
            waiting.sandbox.kill()
        self._check_done()

    def remove(self, pooled: "_PooledSandbox") -> None:
        """Remove a sandbox that died in the pool."""
        if pooled in self._ready:
            self._ready.remove(pooled)
            self._write_ready_file()
        self._check_done()
        self._fill_later(_REFILL_AFTER_FAILURE_S)

    def sandbox_prepared(self) -> None:
        """Continue to fill the pool after a sandbox was prepared."""
        self._fill_later(_REFILL_S)

    def _fill_later(self, delay_s: float) -> None:
        if not self._is_filling and not self.is_ended and len(self._ready) < self._size:
            self._is_filling = True
            self._host.loop.call_later(delay_s, self.fill)

    def _check_done(self) -> None:
        if self.is_ended and not self._ready:
            self._done()
            self._done = _do_nothing

    def _write_ready_file(self) -> None:
        if self._size:
            self._host.ready_file.write_text("".join(f"{each.sandbox.name}\n" for each in self._ready))


class _PooledSandbox:
    """The owner of a pooled sandbox."""

    sandbox: Sandbox

    def __init__(self, pool: SandboxPool) -> None:
        self._pool = pool

    def created(self) -> None:
        if self._pool.is_ended:
            self.sandbox.kill()

    def prepared(self) -> None:
        self._pool.sandbox_prepared()

    def message_received(self, message: dict[str, Any], files: list[int]) -> None:
        del message, files

    def failed(self, message: str) -> None:
        del message
        if self.sandbox.pid is None:
            self.died()
        else:
            self.sandbox.kill()

    def died(self) -> None:
        self.sandbox.remove(lambda: self._pool.remove(self))


def _do_nothing() -> None:
    pass
