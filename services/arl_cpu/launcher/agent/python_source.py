"""Execution of Python source as `__main__` of a warm interpreter."""

import io
import os
import signal
import sys
import time
from collections.abc import Mapping

from arl_cpu.launcher.agent.resident import NAME, execute
from arl_cpu.launcher.linux.syscalls import PR_SET_DUMPABLE, prctl

__all__ = ["reset_interpreter", "run_source"]


def reset_interpreter(base_prefix: str | None) -> None:
    """Reset this process, from which every source is forked. It must not show a virtual environment of the host.

    Without a prefix no source runs here, and modules at this interpreter's paths must not be imported.
    """
    os.environ.clear()
    if base_prefix is None:
        sys.path.clear()
        sys.path_importer_cache.clear()
        return
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.argv = [NAME]
    sys.prefix = sys.exec_prefix = base_prefix
    sys.executable = f"{base_prefix}/bin/{version}"
    shown = [path for path in sys.path if path.startswith(base_prefix)]
    packages = [f"{base_prefix}/lib/{version}/site-packages", "/usr/lib/python3/dist-packages"]
    sys.path[:] = ["", *shown, *(path for path in packages if os.path.isdir(path) and path not in shown)]
    sys.path_importer_cache.clear()


def run_source(source: str, env: Mapping[str, str]) -> None:
    """Run it as `python main.py` would, in this forked process. Ends the process with its exit status."""
    prctl(PR_SET_DUMPABLE, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(env)
    sys.path[0] = os.getcwd()
    _open_standard_files()
    time.tzset()
    execute(source)


def _open_standard_files() -> None:
    sys.stdin = sys.__stdin__ = _text_stream(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text_stream(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text_stream(2, "w")  # type: ignore[misc]


def _text_stream(fd: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(fd, mode, closefd=False)
    errors = "backslashreplace" if fd == 2 else "surrogateescape"
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding="utf-8", errors=errors, line_buffering=fd == 2)
