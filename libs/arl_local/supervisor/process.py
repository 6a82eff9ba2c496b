"""A supervised process: start, readiness checks, restart and stop."""

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
from urllib.parse import urlsplit, urlunsplit

from arl_kit.child_process import spawn, wait_for_exit
from arl_local.supervisor.log_files import LogFile
from arl_local.supervisor.spec import ProcessSpec, restart_delay_s

__all__ = ["SupervisedProcess", "is_http_ok"]

_STABLE_AFTER_S = 10.0
_READY_POLL_S = 0.05
_UNREADY_POLL_S = 1.0
_jitter = SystemRandom()
_ProcessState = Literal["starting", "ready", "unready", "restarting", "stopping", "stopped"]

log = logging.getLogger(__name__)


class SupervisedProcess:
    """A process that is restarted until it is stopped."""

    def __init__(self, spec: ProcessSpec, log_file: LogFile, *, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.log_file = log_file
        self.exits_before_ready = 0
        self.exit_code: int | None = None
        self.ready = asyncio.Event()
        """Set at the first successful readiness check and never cleared."""
        self._on_change = on_change
        self._state: _ProcessState = "starting"
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._state_since = datetime.now(UTC)
        self._last_exit: str | None = None
        self._stopping = asyncio.Event()
        self._finished = asyncio.Event()

    def describe(self) -> dict[str, Any]:
        """Return the state of the process for `status`."""
        return {
            "pid": self._process.pid if self._process else None,
            "state": self._state,
            "restarts": self._restarts,
            "since": self._state_since.isoformat(timespec="milliseconds"),
            "last_exit": self._last_exit,
        }

    async def run(self) -> None:
        """Run the process until it is stopped. The restart delay grows while the process keeps dying."""
        deaths = 0
        try:
            while not self._stopping.is_set():
                started_at = time.monotonic()
                await self._run_once()
                if self._stopping.is_set():
                    return
                deaths = 1 if time.monotonic() - started_at > _STABLE_AFTER_S else deaths + 1
                delay_s = restart_delay_s(deaths, jitter=_jitter.random())
                log.warning("%s ended (%s); restarting it in %.1f s", self.spec.name, self._last_exit, delay_s)
                self._restarts += 1
                self._set_state("restarting")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
        finally:
            self._finished.set()
            self._set_state("stopped")

    async def stop(self) -> None:
        """Send the stop signal; kill the process after its timeout. Return when it has ended."""
        self._stopping.set()
        if self._process is not None:
            self._set_state("stopping")
            os.kill(self._process.pid, self.spec.stop_signal)
        try:
            await asyncio.wait_for(self._finished.wait(), self.spec.stop_timeout_s)
        except TimeoutError:
            log.warning("%s did not end within %.0f s; killing it", self.spec.name, self.spec.stop_timeout_s)
            if self._process is not None:
                os.kill(self._process.pid, signal.SIGKILL)
            await self._finished.wait()

    async def _run_once(self) -> None:
        self._set_state("starting")
        try:
            if self.spec.before_start is not None:
                await self.spec.before_start()
            if self._stopping.is_set():
                return
            with self.log_file.open() as output:
                self._process = spawn(self.spec.argv, env=self.spec.env, output=output, account=self.spec.account)
        except OSError as error:
            self._last_exit = str(error)
            self.exits_before_ready += not self.ready.is_set()
            return
        log.info("%s started, pid %d", self.spec.name, self._process.pid)
        self._on_change()
        watching = asyncio.create_task(self._watch_readiness())
        try:
            await wait_for_exit(self._process)
        finally:
            watching.cancel()
            self._reap(self._process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the rest of its process group and record the exit. The unreaped pid still identifies the group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        self.exit_code = code = process.wait()
        self._process = None
        self._last_exit = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.exits_before_ready += not self.ready.is_set()

    async def _watch_readiness(self) -> None:
        """Check readiness while the process runs. A service without its database is unready for a while."""
        while not self._stopping.is_set():
            is_ready = await self._is_ready()
            if self._stopping.is_set():
                return
            if is_ready and self._state != "ready":
                self.ready.set()
                self._set_state("ready")
            elif not is_ready and self._state == "ready":
                log.warning("%s is no longer ready", self.spec.name)
                self._set_state("unready")
            await asyncio.sleep(self._probe_interval_s())

    def _probe_interval_s(self) -> float:
        pauses_s = {"ready": self.spec.probe_interval_s, "unready": min(self.spec.probe_interval_s, _UNREADY_POLL_S)}
        return pauses_s.get(self._state, _READY_POLL_S)

    async def _is_ready(self) -> bool:
        ready = self.spec.ready
        try:
            return await is_http_ok(ready) if isinstance(ready, str) else await ready()
        except Exception as error:  # noqa: BLE001 - the next check must follow any error
            log.warning("readiness of %s is unknown: %s", self.spec.name, type(error).__name__)
            return False

    def _set_state(self, state: _ProcessState) -> None:
        self._state = state
        self._state_since = datetime.now(UTC)
        self._on_change()


async def is_http_ok(url: str, *, timeout_s: float = 2.0) -> bool:
    """Return True if a GET on this http URL returns 200 now. The host must be an address: names are not resolved."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                asked = urlunsplit(("", "", parts.path, parts.query, ""))
                writer.write(f"GET {asked} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
                status_line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status_line.split(b" ")[1:2] == [b"200"]
