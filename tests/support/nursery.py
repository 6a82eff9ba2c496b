"""Services as forked processes with preloaded imports, which take three quarters of a start."""

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

__all__ = ["Forked"]

_context = get_context("forkserver")
_context.set_forkserver_preload(
    [f"arl_{name}.app" for name in ("admission", "scheduler", "cpu", "gpu", "api", "gateway")]
)


class Forked:
    """The part of `subprocess.Popen` that tests use. The process has its own session and ends with this one."""

    def __init__(self, module: str, *, env: Mapping[str, str], log: Path) -> None:
        self._process = _context.Process(target=_become, args=(module, dict(env), log), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _become(module: str, env: Mapping[str, str], log: Path) -> None:
    """Run the module as `python -m` does, with only these variables."""
    os.setsid()
    words = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(words, stream)
    os.close(words)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
