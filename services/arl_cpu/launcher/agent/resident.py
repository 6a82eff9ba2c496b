"""A resident interpreter of an environment. It runs each source in a fork of itself, as `python main.py` would.

The environment's own `python3`, version 3.6 or newer, runs this text. It therefore imports nothing of this project, and
few modules at all, because they occupy memory in every environment that runs source. File 3 is a channel to the agent.
An agent that forks itself imports `execute` from here.
"""

import _signal  # type: ignore[import-not-found]  # `signal` and `socket` would load ten times as much
import _socket
import atexit
import gc
import io
import os
import struct
import sys
import time
from types import ModuleType

CHANNEL = 3
PR_SET_DUMPABLE = 4
ONCE = b"once"
STARTED, EXITED, NO_PROCESS = 0, 1, 2
ANSWER = struct.Struct("=3i")
LISTS = 8
VARIABLES, DIRECTORY, SOURCE = 2, 3, 7
"""Indices of the lists in a request."""
NAME = "main.py"
CANNOT_FLUSH = 120


def let_read_memory(allowed: bool) -> None:
    """Set whether processes of the same uid may read the memory. The process that forks sources stays unreadable."""
    try:
        import _ctypes
    except ImportError:
        return  # an interpreter that was built without
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]  # itself
    _ctypes.call_cdeclfunction(prctl, (PR_SET_DUMPABLE, int(allowed), 0, 0, 0))


def wait_for_source() -> "tuple[int, list[int]]":
    """Return the order and its standard files in the process that runs it; no files if it has them already."""
    let_read_memory(False)
    channel = _socket.socket(fileno=CHANNEL)
    os.set_inheritable(CHANNEL, False)
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()
    while True:
        said, beside, _, _ = channel.recvmsg(8, _socket.CMSG_SPACE(16))
        if not said:
            os._exit(0)
        packed = beside[0][2]
        order, *ends = struct.unpack("={}i".format(len(packed) // 4), packed)  # noqa: UP032  # as said above
        if said == ONCE or not fork(channel, [order, *ends]):
            channel.close()
            return order, ends


def fork(channel: _socket.socket, files: "list[int]") -> bool:
    """Fork. Return True in the parent, which waits for the next request and reports the end of the child.

    The child reports its own start before it runs anything, because its source may kill the parent at once.
    """
    try:
        pid = os.fork()
    except OSError as error:
        channel.send(ANSWER.pack(NO_PROCESS, error.errno or 0, 0))
        pid = -1
    if pid == 0:
        channel.send(ANSWER.pack(STARTED, os.getpid(), 0))
        return False
    os.dup2(0, 2)  # the first action owned it, because errors could go there until now
    for file in files:
        os.close(file)
    if pid > 0:
        # A source that has ended this process continues to its own end; the waiting process must not have reaped it.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        _, status, usage = os.wait4(pid, 0)
        channel.send(ANSWER.pack(EXITED, status, usage.ru_maxrss))
    return True


def read(order: int) -> "list[list[bytes]]":
    os.lseek(order, 0, os.SEEK_SET)
    with os.fdopen(order, "rb") as file:
        content = file.read()
    lists: list[list[bytes]] = []
    at = 0
    for _ in range(LISTS):
        (count,) = struct.unpack_from("=I", content, at)
        at += 4
        items = []
        for _ in range(count):
            (length,) = struct.unpack_from("=I", content, at)
            items.append(content[at + 4 : at + 4 + length])
            at += 5 + length
        lists.append(items)
    return lists


def run(order: int, ends: "list[int]", sites: "dict[str, object]") -> None:
    let_read_memory(True)
    for number, file in enumerate(ends):
        os.dup2(file, number)
        os.close(file)
    lists = read(order)
    if ends:
        os.setsid()
        os.chdir(lists[DIRECTORY][0])
    os.environ.clear()
    for each in lists[VARIABLES]:
        name, _, value = os.fsdecode(each).partition("=")
        os.environ[name] = value
    time.tzset()
    sys.argv = [NAME]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())
    if site_state() != sites:
        find_new_packages()
    execute(lists[SOURCE][0])


def site_state() -> "dict[str, object]":
    """Return the modification times that change when packages are installed."""
    return {path: os.stat(path).st_mtime_ns if os.path.isdir(path) else None for path in site_directories()}


def site_directories() -> "list[str]":
    if "site" not in sys.modules or not hasattr(sys.modules["site"], "getsitepackages"):
        return []
    import site

    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def find_new_packages() -> None:
    import site

    sys.path_importer_cache.clear()
    known = set(sys.path)
    site.addsitepackages(known)
    if site.ENABLE_USER_SITE:
        site.addusersitepackages(known)


class Loader:
    """A loader that gives tracebacks the source (PEP 302) without `linecache`, which costs a MiB per environment."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, _name: str) -> str:
        return self.text


def execute(source: "bytes | str") -> None:
    """End this process as the source ends it: like a normal end, but without the interpreter's own clean-up.

    The clean-up would write to every page that this process shares with its parent.
    """
    known = set(sys.modules)
    main = ModuleType("__main__")
    text = source if isinstance(source, str) else source.decode("utf-8", "replace")
    main.__dict__.update(__file__=NAME, __builtins__=sys.modules["builtins"], __loader__=Loader(text))
    sys.modules["__main__"] = main
    namespace = main.__dict__
    del main  # release what the source defined
    code = run_to_its_end(source, namespace)
    del namespace
    code = end(code, known)
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def run_to_its_end(source: "bytes | str", namespace: "dict[str, object]") -> int:
    """Run the source. Return its exit status, or the negative number of a signal."""
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), namespace)  # noqa: S102  # it is the job
    except SystemExit as end:
        return exit_code(end.code)
    except KeyboardInterrupt as error:
        show(error)
        return -int(_signal.SIGINT)
    except BaseException as error:  # noqa: BLE001  # as the interpreter itself does at the end of a program
        show(error)
        return 1
    return 0


def exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201  # what `sys.exit("text")` does
    return 1


def show(error: BaseException) -> None:
    """Print the traceback from the first frame of the source on; use the hook that the source has set."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, trace)
        return
    import traceback

    traceback.print_exception(type(error), error, trace)


def end(code: int, known: "set[str]") -> int:
    """End the source in the normal order: threads, exit handlers, open files, buffers. Return the exit code."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001  # told, and no other end for that
        show(error)
    if len(sys._current_frames()) == 1:
        let_go(known)
    else:
        flush_all()  # detached threads run until the last moment and need their objects
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if not flush(stream):
            code = code or CANNOT_FLUSH
    return code


def let_go(known: "set[str]") -> None:
    """Clear the source's own modules to close files and call finalizers. Libraries end with the process."""
    libraries = (sys.prefix, sys.base_prefix)
    for name in set(sys.modules) - known | {"__main__"}:
        if not str(getattr(sys.modules[name], "__file__", None) or sys.prefix).startswith(libraries):
            del sys.modules[name]
    gc.collect()


def flush_all() -> None:
    for kind in (io.TextIOWrapper, io.BufferedWriter):
        for each in gc.get_objects():
            if isinstance(each, kind):
                flush(each)


def flush(stream: object) -> bool:
    """Flush a stream. Return False if that fails: it may be closed or replaced."""
    try:
        if not getattr(stream, "closed", True):
            stream.flush()  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):
        return False
    return True


if __name__ == "resident":
    at_first = site_state()
    run(*wait_for_source(), at_first)
