"""The supervisor of the processes on one machine: start, published state and shutdown."""

import asyncio
import json
import logging
import os
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Self

from arl_local.supervisor.log_files import LogFile
from arl_local.supervisor.process import SupervisedProcess
from arl_local.supervisor.spec import ProcessSpec
from arl_store.files import replace_file

__all__ = ["StartFailed", "Supervisor"]

_MAX_EXITS_BEFORE_READY = 5
_LOG_ROTATION_INTERVAL_S = 2.0

log = logging.getLogger(__name__)


class StartFailed(Exception):
    """A process did not become ready. The message has the end of its log, `exit_code` its last exit code."""

    def __init__(self, process: SupervisedProcess, problem: str) -> None:
        super().__init__(f"{process.spec.name} {problem}; the end of its log:\n{process.log_file.tail(15)}")
        self.process = process.spec.name
        self.exit_code = process.exit_code


class Supervisor:
    """An asynchronous context manager that stops every process, in order, at its end.

    `processes.json` in its directory has the state of the processes; `logs/NAME.log` has the output of each.
    """

    def __init__(self, directory: Path, *, log_limit_bytes: int = 10 << 20) -> None:
        self._directory = directory
        self._log_limit_bytes = log_limit_bytes
        self._processes: dict[str, SupervisedProcess] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._log_rotation: asyncio.Task[None] | None = None
        self._since = datetime.now(UTC)
        self._phase, self._message = "starting", ""

    async def __aenter__(self) -> Self:
        (self._directory / "logs").mkdir(mode=0o700, exist_ok=True)
        self._log_rotation = asyncio.create_task(self._rotate_logs_forever())
        self._publish()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.report("stopping")
        await self.stop()
        if self._log_rotation is not None:
            self._log_rotation.cancel()
        failed = isinstance(error, Exception)
        self.report("failed" if failed else "stopped", str(error) if failed else "")

    def report(self, phase: str, message: str = "") -> None:
        """Publish the current phase in `processes.json`."""
        self._phase, self._message = phase, message
        log.info("%s %s", phase, message)
        self._publish()

    def start(self, spec: ProcessSpec) -> None:
        """Start this process and keep it running."""
        path = self._directory / "logs" / f"{spec.name}.log"
        log_file = LogFile(path, limit_bytes=self._log_limit_bytes)
        process = SupervisedProcess(spec, log_file, on_change=self._publish)
        self._processes[spec.name] = process
        self._tasks[spec.name] = asyncio.create_task(process.run(), name=spec.name)
        self._publish()

    async def wait_ready(self, *names: str, timeout_s: float) -> None:
        """Return when these processes are ready. Raises `StartFailed` if one of them does not become ready."""
        for name in names:
            process = self._processes[name]
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wait_ready_or_fail(process)
            except TimeoutError:
                raise StartFailed(process, f"was not ready within {timeout_s:.0f} s") from None

    async def stop(self) -> None:
        """Stop all processes by `stop_order`; processes with equal numbers stop together."""
        by_order = sorted(self._processes.values(), key=lambda process: process.spec.stop_order)
        for _, together in groupby(by_order, key=lambda process: process.spec.stop_order):
            await asyncio.gather(*(process.stop() for process in together))
        await asyncio.gather(*self._tasks.values())

    async def _wait_ready_or_fail(self, process: SupervisedProcess) -> None:
        while not process.ready.is_set():
            if process.exits_before_ready and process.exit_code in process.spec.fatal_exit_codes:
                raise StartFailed(process, "cannot run on this machine")
            if process.exits_before_ready >= _MAX_EXITS_BEFORE_READY:
                raise StartFailed(process, f"ended {process.exits_before_ready} times before it was ready")
            await asyncio.sleep(0.02)

    async def _rotate_logs_forever(self) -> None:
        while True:
            await asyncio.sleep(_LOG_ROTATION_INTERVAL_S)
            for process in self._processes.values():
                try:
                    process.log_file.rotate_if_full()
                except OSError as error:
                    log.warning("the log of %s cannot be rotated: %s", process.spec.name, error)

    def _publish(self) -> None:
        seen = {
            "supervisor": {"pid": os.getpid(), "since": self._since.isoformat(timespec="milliseconds")},
            "phase": self._phase,
            "message": self._message,
            "processes": {name: process.describe() for name, process in self._processes.items()},
        }
        try:
            replace_file(self._directory / "processes.json", json.dumps(seen, indent=1) + "\n", durable=False)
        except OSError as error:
            # `status` shows old data then. Processes must keep running if the disk is full.
            log.warning("processes.json cannot be written: %s", error)
