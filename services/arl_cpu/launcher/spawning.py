"""Making an action's first process, in each of the ways that there are. Raises OSError where there is none."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import termios

from .orders import Order
from .source import run_source
from .walls import Walls

__all__ = ["fork_source", "spawn", "spawn_by_fork", "spawn_interpreter", "spawn_session"]


def spawn(order: Order, stdio: tuple[int, ...]) -> int:
    """By vfork: copying this interpreter's page tables would cost more than the command."""
    os.chdir(order.cwd)
    ends = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)]
    # The interpreter ignores these two; what it starts must not.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    program = _program(order.argv[0], order.env.get("PATH", os.defpath))
    return os.posix_spawn(program, order.argv, order.env, file_actions=ends, setsid=True, setsigdef=defaults)


def spawn_interpreter(order: Order, payload: int, stdio: tuple[int, ...]) -> int:
    """One that runs this source and ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        pid = spawn(order, (*stdio, theirs.fileno()))
        socket.send_fds(ours, [b"once"], [payload])
    return pid


def _program(name: str, search: str) -> str:
    """As a shell finds it. Raises FileNotFoundError, or PermissionError for a file that may not be executed."""
    if "/" in name:
        return name
    found = [path for each in search.split(":") if os.path.isfile(path := os.path.join(each or ".", name))]
    if not found:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return next((path for path in found if os.access(path, os.X_OK)), found[0])


def spawn_by_fork(order: Order, stdio: tuple[int, ...], walls: Walls) -> int:
    """For an action with walls of its own: between fork and exec it enters them."""
    stdin, stdout, stderr = stdio
    process = subprocess.Popen(
        order.argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=order.cwd,
        env=order.env,
        start_new_session=True,
        preexec_fn=walls.enter,  # there is one thread
    )
    process.returncode = 0  # reaped by the agent, not by this object
    return process.pid


def fork_source(order: Order, stdio: tuple[int, ...], walls: Walls) -> int:
    source = order.source.decode(errors="surrogatepass")
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            for number, fd in enumerate(stdio):
                os.dup2(fd, number)
            walls.enter()
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.chdir(order.cwd)
            run_source(source, order.env)
        finally:
            os._exit(1)
    return pid


def spawn_session(order: Order, files: tuple[int, ...], walls: Walls) -> int:
    """By fork: a controlling terminal is taken in the process that shall have it."""
    program = _program(order.argv[0], order.env.get("PATH", os.defpath))
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            for ours in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ours, signal.SIG_DFL)
            os.setsid()
            os.chdir(order.cwd)
            for number, fd in enumerate(files):
                os.dup2(fd, number)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            walls.enter()
            os.closerange(len(files), os.sysconf("SC_OPEN_MAX"))
            os.execve(program, order.argv, order.env)  # noqa: S606
        finally:
            os._exit(126)
    return pid
