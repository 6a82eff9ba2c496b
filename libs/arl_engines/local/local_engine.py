"""The local engine: one `tangram node up --foreground` per node, each in its own directory and session.

The processes outlive the controller. All state is in files, so every controller of the same directory sees the same
nodes. A lock file ensures that one controller at a time starts or stops nodes.
"""

import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from arl_engines.engine import (
    ClusterEngineError,
    EngineCapabilities,
    EngineNode,
    EngineNodeState,
    NodeCommand,
    NodeCommands,
    NodeRequest,
    PoolSpec,
)
from arl_engines.local.node_record import NodeRecord, boot_time_s, process_writer
from arl_engines.node_names import locked_directory, new_node_name
from arl_local.state_dir import StateDir

__all__ = ["LocalEngine"]

STABLE_AFTER_S = 30.0
"""Seconds after which an exit no longer counts as one soon after the start."""
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
"""Seconds before a restart: after the first exit, and at most."""
MAX_OUTPUT_BYTES = 1 << 20

log = logging.getLogger(__name__)


class LocalEngine:
    """Nodes as processes of this machine, below one directory."""

    name = "local"

    def __init__(self, directory: Path, commands: NodeCommands) -> None:
        """Use `directory` for the nodes of all pools; `commands` says how a node is started."""
        self._directory = directory.absolute()
        self._commands = commands
        self._children: set[int] = set()
        """Own children that were not reaped yet. Those of an earlier controller are reaped by init."""
        is_root = os.geteuid() == 0
        self.capabilities = EngineCapabilities(
            elastic=True,
            victim_choice=True,
            preemption_notice=False,
            restarts_manager=True,
            root=is_root,
            cgroup=is_root,
            gpu=True,
        )

    async def ensure(self, pool: PoolSpec, count: int) -> str:
        """Restart ended nodes, and start nodes until there are `count`. Raises `ClusterEngineError`."""
        async with locked_directory(self._directory):
            records = [record for record in self._sweep() if record.pool == pool.name and record.stop_by_s is None]
            for record in records:
                if record.live_pid() is None:
                    await self._restart(record, pool)
            for _ in range(count - len(records)):
                await self._start(self._new_record(pool), pool)
        return ""

    async def nodes(self) -> Sequence[EngineNode]:
        """Return the nodes by name. Released nodes that ended disappear, with their directory."""
        async with locked_directory(self._directory):
            return [_to_engine_node(record) for record in self._sweep()]

    async def release(self, node: str, deadline_s: float) -> None:
        """Send SIGTERM to a node. It is killed if it has not ended after `deadline_s` seconds."""
        async with locked_directory(self._directory):
            record = NodeRecord.read(self._directory / node)
            if record is None or record.stop_by_s is not None:
                return
            record.stop_by_s = boot_time_s() + deadline_s
            record.write()
            _send(record, signal.SIGTERM)
            log.info("%s: stopping", node)

    async def logs(self, node: str, tail: int) -> str:
        """Return the last lines of the output of a node; empty if it is unknown."""
        record = NodeRecord.read(self._directory / node)
        return _last_lines(record.output, tail) if record is not None else ""

    def _records(self) -> list[NodeRecord]:
        found = (NodeRecord.read(path) for path in self._directory.iterdir() if path.is_dir())
        return sorted((record for record in found if record is not None), key=lambda record: record.name)

    def _sweep(self) -> list[NodeRecord]:
        """Reap children, kill released nodes after their deadline, and remove those that ended. Return the others."""
        self._children = {pid for pid in self._children if os.waitpid(pid, os.WNOHANG)[0] == 0}
        kept: list[NodeRecord] = []
        for record in self._records():
            if record.stop_by_s is not None and record.live_pid() is None:
                if self._remove(record):
                    continue
            elif record.stop_by_s is not None and boot_time_s() > record.stop_by_s:
                log.warning("%s: killed, because it did not stop in time", record.name)
                _send(record, signal.SIGKILL)
            kept.append(record)
        return kept

    def _remove(self, record: NodeRecord) -> bool:
        try:
            if record.state_directory.exists():
                StateDir(record.state_directory).purge()
            shutil.rmtree(record.directory)
        except OSError as error:
            log.warning("%s: its directory cannot be removed: %s", record.name, error)
            return False
        log.info("%s: stopped and removed", record.name)
        return True

    def _new_record(self, pool: PoolSpec) -> NodeRecord:
        """Return the record of a node with a new name."""
        name = new_node_name(self._directory, pool.name)
        record = NodeRecord(directory=self._directory / name, name=name, pool=pool.name)
        record.directory.mkdir(mode=0o700)
        record.write()
        return record

    async def _restart(self, record: NodeRecord, pool: PoolSpec) -> None:
        """Start a node that ended, after a delay that grows while it keeps ending soon."""
        now = boot_time_s()
        if record.started_s is not None:
            is_quick = now - record.started_s < STABLE_AFTER_S + _delay_s(record.quick_exits)
            if not is_quick:
                record.quick_exits = 0
            if is_quick and now - record.started_s < _delay_s(record.quick_exits):
                return
            record.quick_exits += 1
            record.restarts += 1
            record.reason = f"its process ended: {_last_lines(record.output, 1)}".strip()[:300]
            log.warning("%s: %s; starting it again", record.name, record.reason)
        await self._start(record, pool)

    async def _start(self, record: NodeRecord, pool: PoolSpec) -> None:
        request = NodeRequest(name=record.name, pool=pool, directory=record.state_directory)
        command = await self._commands.command_for(request)
        record.started_s = boot_time_s()
        record.write()
        try:
            pid = _spawn(record, command)
        except (OSError, subprocess.SubprocessError) as error:
            raise ClusterEngineError(f"{record.name} cannot be started: {error}") from None
        self._children.add(pid)
        log.info("%s: started, pid %d", record.name, pid)


def _spawn(record: NodeRecord, command: NodeCommand) -> int:
    """Start the process of a node and return its id. It has no death signal: nodes outlive the controller.

    The child inherits the lock of the directory until exec, so another controller looks for processes only after this
    one has named itself.
    """
    if record.output.exists() and record.output.stat().st_size > MAX_OUTPUT_BYTES:
        os.truncate(record.output, 0)
    with open(os.open(record.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as output:
        process = subprocess.Popen(
            command.argv,
            env=dict(command.env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=process_writer(record.directory),
        )
    process.returncode = 0  # the object must not reap the process or complain that it runs: the engine reaps it
    return process.pid


def _to_engine_node(record: NodeRecord) -> EngineNode:
    pid = record.live_pid()
    state = EngineNodeState.RUNNING if pid is not None else EngineNodeState.STARTING
    if record.stop_by_s is not None:
        state = EngineNodeState.STOPPING
    return EngineNode(
        name=record.name,
        pool=record.pool,
        state=state,
        engine_id=f"pid {pid}" if pid is not None else "",
        restarts=record.restarts,
        reason=record.reason,
    )


def _delay_s(quick_exits: int) -> float:
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(quick_exits, 20))


def _send(record: NodeRecord, number: signal.Signals) -> None:
    """Send a signal to the node's process. The pidfd and a second check ensure that no other process gets it."""
    pid = record.live_pid()
    if pid is None:
        return
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            if record.live_pid() == pid:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _last_lines(path: Path, count: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 400 * count))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError:
        return ""
