"""The process of the cluster's Python that talks to Ray, and its requests."""

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from arl_engines.engine import ClusterEngineError

__all__ = ["DriverProcess", "ray_environment"]

START_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 15.0
MAX_ANSWER_BYTES = 64 << 20
"""Limit of an answer. The state of 500 nodes has about 200 KiB."""
MAX_LOG_BYTES = 1 << 20
_SCRIPT = Path(__file__).with_name("cluster_driver.py")


def ray_environment(environment: Mapping[str, str], token_path: str | None = None) -> dict[str, str]:
    """Return the environment of the driver. If a token is known, the mode is set too: Ray's default differs by version.

    Args:
        environment: The environment of the controller.
        token_path: File with the token of the cluster; None: as the environment says.
    """
    env = {name: value for name, value in environment.items() if not name.startswith("TANGRAM_")}
    if token_path is not None:
        env.pop("RAY_AUTH_TOKEN", None)
        env |= {"RAY_AUTH_TOKEN_PATH": token_path, "RAY_AUTH_MODE": "token"}
    elif "RAY_AUTH_TOKEN_PATH" in env or "RAY_AUTH_TOKEN" in env:
        env.setdefault("RAY_AUTH_MODE", "token")
    return env


class DriverProcess:
    """A driver that is started at its first request, and again after it has ended. Requests run one by one."""

    def __init__(self, python: str, *, address: str, namespace: str, env: Mapping[str, str], log: Path) -> None:
        """Run the driver with the interpreter `python`; its messages go to the file `log`."""
        self._argv = (python, str(_SCRIPT), "--address", address, "--namespace", namespace)
        self._env = dict(env)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def call(self, request: str, **values: Any) -> Any:
        """Return the result of a request. Raises `ClusterEngineError`."""
        async with self._turn:
            if self._process is None or self._process.returncode is not None:
                await self._start()
            return await self._ask({"do": request, **values}, CALL_TIMEOUT_S)

    async def close(self) -> None:
        """End the driver. The actors stay."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> None:
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(log).st_size > MAX_LOG_BYTES:
                    os.truncate(log, 0)
                self._process = await asyncio.create_subprocess_exec(
                    *self._argv,
                    env=self._env,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    limit=MAX_ANSWER_BYTES,
                    start_new_session=True,  # Ctrl-C stops the controller, which may still need it
                )
            finally:
                os.close(log)
        except OSError as error:
            raise ClusterEngineError(
                f"the Python of the Ray cluster cannot be started: {error}. Give its path with --ray-python"
            ) from None
        try:
            await self._ask(None, START_TIMEOUT_S)
        except ClusterEngineError as error:
            await self.close()
            hint = "Check --address and the token of the cluster (--ray-token)"
            if "No module named 'ray'" in str(error):
                hint = "Give the cluster's Python with --ray-python"
            raise ClusterEngineError(f"no connection to the Ray cluster: {error}. {hint}") from None

    async def _ask(self, request: Mapping[str, Any] | None, timeout_s: float) -> Any:
        """Send a request, if one is given, and return the result of the next answer."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                if request is not None:
                    process.stdin.write(json.dumps(request).encode() + b"\n")
                    await process.stdin.drain()
                line = await process.stdout.readline()
        except (TimeoutError, OSError, ValueError) as error:
            await self.close()
            raise ClusterEngineError(
                f"Ray does not answer: {str(error) or f'no answer within {timeout_s:g} s'}"
            ) from None
        except BaseException:
            await self.close()  # its answer would be taken for that of the next request
            raise
        if not line:
            await self.close()
            raise ClusterEngineError(f"the Ray driver ended; see {self._log}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClusterEngineError(f"Ray: {answer['error']}")
        return answer["result"]
