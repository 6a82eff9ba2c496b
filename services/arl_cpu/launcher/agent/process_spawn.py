"""Functions that create an action's first process. Each raises OSError on failure."""

import errno
import fcntl
import os
import signal
import subprocess
import termios
from contextlib import suppress
from dataclasses import replace

from arl_cpu.launcher.agent.agent_request import AgentRequest
from arl_cpu.launcher.isolation.isolation import Isolation
from arl_cpu.launcher.isolation.users import SandboxUser

__all__ = ["give_files", "spawn_by_fork", "spawn_process", "spawn_session", "with_home"]


def with_home(request: AgentRequest, user: SandboxUser, default: str) -> AgentRequest:
    """Return the request with the home directory of its user, unless it has another."""
    return replace(request, env={"HOME": user.home or default, **request.env})


def give_files(files: tuple[int, ...], user: SandboxUser) -> None:
    """Make the user the owner: programs open their standard files again by path, which only the owner may."""
    for file in files:
        with suppress(PermissionError):  # a device of the node
            os.fchown(file, user.uid, -1)


def spawn_process(request: AgentRequest, stdio: tuple[int, ...]) -> int:
    """Start by vfork: copying this interpreter's page tables would cost more than the command."""
    os.chdir(request.cwd)
    ends = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)]
    # The interpreter ignores these two signals; the started program must not.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    program = _find_program(request.argv[0], request.env.get("PATH", os.defpath))
    return os.posix_spawn(program, request.argv, request.env, file_actions=ends, setsid=True, setsigdef=defaults)


def _find_program(name: str, search: str) -> str:
    """Find a program as a shell does.

    A file without execute permission is the last choice. Raises FileNotFoundError.
    """
    if "/" in name:
        return name
    found = [path for each in search.split(":") if os.path.isfile(path := os.path.join(each or ".", name))]
    if not found:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return next((path for path in found if os.access(path, os.X_OK)), found[0])


def spawn_by_fork(request: AgentRequest, stdio: tuple[int, ...], isolation: Isolation, *inherited: int) -> int:
    """Start by fork for an isolation that confines each action: the child confines itself before exec."""
    stdin, stdout, stderr = stdio
    process = subprocess.Popen(
        request.argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=request.cwd,
        env=request.env,
        start_new_session=True,
        pass_fds=inherited,
        preexec_fn=isolation.confine_action,  # safe: there is one thread
    )
    process.returncode = 0  # reaped by the agent, not by this object
    return process.pid


def spawn_session(request: AgentRequest, files: tuple[int, ...], isolation: Isolation) -> int:
    """Start by fork: a process must acquire its controlling terminal itself."""
    program = _find_program(request.argv[0], request.env.get("PATH", os.defpath))
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            for ours in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ours, signal.SIG_DFL)
            os.setsid()
            os.chdir(request.cwd)
            for number, fd in enumerate(files):
                os.dup2(fd, number)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            isolation.confine_action()
            os.closerange(len(files), os.sysconf("SC_OPEN_MAX"))
            os.execve(program, request.argv, request.env)  # noqa: S606
        finally:
            os._exit(126)
    return pid
