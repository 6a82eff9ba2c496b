"""One supervised process: started, watched, started again, stopped."""

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any, Literal

from arl_kit.supervisor.log_files import LogFile
from arl_kit.supervisor.readiness import answers_ok
from arl_kit.supervisor.spec import ProcessSpec, restart_delay_s
from arl_store.child import exited, spawn

__all__ = ["SupervisedProcess"]

_UP_LONG_ENOUGH_S = 10.0
_READY_POLL_S = 0.05
_jitter = SystemRandom()

log = logging.getLogger(__name__)


class SupervisedProcess:
    """Keeps one process running until it is stopped."""

    def __init__(self, spec: ProcessSpec, log_file: LogFile, *, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.log_file = log_file
        self.deaths_before_ready = 0
        self.exit_code: int | None = None
        self.ready = asyncio.Event()
        self._on_change = on_change
        self._state: Literal["starting", "ready", "restarting", "stopping", "stopped"] = "starting"
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._since = datetime.now(UTC)
        self._last_exit: str | None = None
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    def describe(self) -> dict[str, Any]:
        """For `status`."""
        return {
            "pid": self._process.pid if self._process else None,
            "state": self._state,
            "restarts": self._restarts,
            "since": self._since.isoformat(timespec="milliseconds"),
            "last_exit": self._last_exit,
        }

    async def run(self) -> None:
        """Return when the process was stopped; until then start it again, later and later while it keeps dying."""
        deaths = 0
        try:
            while not self._stopping.is_set():
                started_at = time.monotonic()
                await self._run_once()
                if self._stopping.is_set():
                    return
                deaths = 1 if time.monotonic() - started_at > _UP_LONG_ENOUGH_S else deaths + 1
                delay_s = restart_delay_s(deaths, jitter=_jitter.random())
                log.warning("%s ended (%s); starting it again in %.1f s", self.spec.name, self._last_exit, delay_s)
                self._restarts += 1
                self._become("restarting")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
        finally:
            self._ended.set()
            self._become("stopped")

    async def stop(self) -> None:
        """Ask it to end; end it after its timeout. Returns when it has gone."""
        self._stopping.set()
        if self._process is not None:
            self._become("stopping")
            os.kill(self._process.pid, self.spec.stop_signal)
        try:
            await asyncio.wait_for(self._ended.wait(), self.spec.stop_timeout_s)
        except TimeoutError:
            log.warning("%s did not end within %.0f s; killing it", self.spec.name, self.spec.stop_timeout_s)
            if self._process is not None:
                os.kill(self._process.pid, signal.SIGKILL)
            await self._ended.wait()

    async def _run_once(self) -> None:
        self._become("starting")
        try:
            if self.spec.before_start is not None:
                await self.spec.before_start()
            if self._stopping.is_set():
                return
            with self.log_file.open() as output:
                self._process = spawn(self.spec.argv, env=self.spec.env, output=output, account=self.spec.account)
        except OSError as error:
            self._last_exit = str(error)
            self.deaths_before_ready += not self.ready.is_set()
            return
        log.info("%s started, pid %d", self.spec.name, self._process.pid)
        self._on_change()
        watching = asyncio.create_task(self._watch_for_readiness())
        try:
            await exited(self._process)
        finally:
            watching.cancel()
            self._reap(self._process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """What it left in its process group goes with it; its pid is still ours, so the group is too."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        self.exit_code = code = process.wait()
        self._process = None
        self._last_exit = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.deaths_before_ready += not self.ready.is_set()

    async def _watch_for_readiness(self) -> None:
        while not await self._is_ready():  # noqa: ASYNC110
            await asyncio.sleep(_READY_POLL_S)
        self.ready.set()
        if not self._stopping.is_set():
            self._become("ready")

    async def _is_ready(self) -> bool:
        ready = self.spec.ready
        return await answers_ok(ready) if isinstance(ready, str) else await ready()

    def _become(self, state: Literal["starting", "ready", "restarting", "stopping", "stopped"]) -> None:
        self._state = state
        self._since = datetime.now(UTC)
        self._on_change()
