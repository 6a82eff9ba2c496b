"""Python source as `__main__` of an interpreter that is already warm."""

import atexit
import gc
import io
import linecache
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Mapping
from typing import NoReturn

from .syscalls import PR_SET_DUMPABLE, prctl

__all__ = ["look_like_a_fresh_interpreter", "run_source"]

_NAME = "main.py"
_CANNOT_FLUSH, _INTERRUPTED = 120, 130


def look_like_a_fresh_interpreter(base_prefix: str | None) -> None:
    """Once, in the process that every source will be a fork of: of a virtual environment outside nothing is visible.

    Without a prefix none will be, and what lies where this interpreter's modules were is not for it to import.
    """
    os.environ.clear()
    if base_prefix is None:
        sys.path.clear()
        sys.path_importer_cache.clear()
        return
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.argv = [_NAME]
    sys.prefix = sys.exec_prefix = base_prefix
    sys.executable = f"{base_prefix}/bin/{version}"
    shown = [path for path in sys.path if path.startswith(base_prefix)]
    packages = [f"{base_prefix}/lib/{version}/site-packages", "/usr/lib/python3/dist-packages"]
    sys.path[:] = ["", *shown, *(path for path in packages if os.path.isdir(path) and path not in shown)]
    sys.path_importer_cache.clear()


def run_source(source: str, env: Mapping[str, str]) -> NoReturn:
    """Run it as `python main.py` would, in this forked process; ends the process with its exit status."""
    prctl(PR_SET_DUMPABLE, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(env)
    sys.path[0] = os.getcwd()
    _open_standard_files()
    main = types.ModuleType("__main__")
    code = _execute(source, main)
    os._exit(_end(code, main))


def _open_standard_files() -> None:
    sys.stdin = sys.__stdin__ = _text(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, "w")  # type: ignore[misc]


def _text(fd: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(fd, mode, closefd=False)
    errors = "backslashreplace" if fd == 2 else "surrogateescape"
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding="utf-8", errors=errors, line_buffering=fd == 2)


def _execute(source: str, main: types.ModuleType) -> int:
    main.__file__ = _NAME
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    linecache.cache[_NAME] = (len(source), None, source.splitlines(keepends=True), _NAME)
    try:
        exec(compile(source, _NAME, "exec", dont_inherit=True), main.__dict__)  # noqa: S102  # it is the job
    except SystemExit as end:
        return _exit_code(end.code)
    except KeyboardInterrupt as error:
        _show(error)
        return _INTERRUPTED
    except BaseException as error:  # noqa: BLE001  # as the interpreter itself does at the end of a program
        _show(error)
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201  # what `sys.exit("text")` does
    return 1


def _show(error: BaseException) -> None:
    """From the first frame of the source on; a hook that the source set is honoured."""
    trace = error.__traceback__
    ours = trace.tb_next if trace is not None else None
    error = error.with_traceback(ours)
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, ours)
        return
    traceback.print_exception(error)


def _end(code: int, main: types.ModuleType) -> int:
    """Threads, exit handlers, what the program forgot to close, and buffers, in the order of a normal end."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        main.__dict__.clear()
        gc.collect()
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if not _flush(stream):
                code = code or _CANNOT_FLUSH
    return code


def _flush(stream: object) -> bool:
    """A stream may have been closed, or replaced by anything."""
    try:
        if not getattr(stream, "closed", True):
            stream.flush()  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return False
    return True
