"""Child processes that never outlive their parent, and their environment variables."""

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

__all__ = ["UnixAccount", "child_environment", "spawn", "wait_for_exit"]

_PR_SET_PDEATHSIG = 1

BASE_VARIABLES = ("PATH", "HOME", "LANG", "TZ")
LIBRARY_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Paths of the GPU driver's libraries and of torch, as environment modules of a cluster set them."""
DEVICE_PREFIXES = ("CUBLAS_", "CUDA_", "NCCL_", "NVIDIA_", "PYTORCH_", "TORCH_")
"""Prefixes of device variables. A batch scheduler names the GPUs of its job in CUDA_VISIBLE_DEVICES."""

NETWORK_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Proxies and certificates, in upper or lower case."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class UnixAccount:
    """The account of a child process: one user, one group, no supplementary groups."""

    uid: int
    gid: int


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    output: int | IO[bytes],
    account: UnixAccount | None = None,
    before_exec: Callable[[], None] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in a new session. The kernel kills it when the calling thread ends, for any reason.

    Call it from the main thread: the kernel watches the thread that forks, not the process. `before_exec` runs in the
    child as its final user.
    """
    return subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        pass_fds=pass_fds,
        preexec_fn=_parent_death_hook(
            os.getpid(), before_exec
        ),  # runs after the change of user, which clears the death signal
    )


async def wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Return when the child has ended. The child stays unreaped, so that its pid still refers to it."""
    if process.returncode is not None:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(process.pid)
    try:
        loop.add_reader(pidfd, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _parent_death_hook(parent: int, before_exec: Callable[[], None] | None) -> Callable[[], None]:
    def arm() -> None:
        """Set the death signal in the child; exit if the parent has already ended."""
        if before_exec is not None:
            before_exec()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm


def child_environment(
    environment: Mapping[str, str], *, devices: bool = False, network: bool = False
) -> dict[str, str]:
    """Return the variables that a child process receives.

    `devices` adds those of processes that compute on devices or start such processes. `network` adds those of processes
    that call external services.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in BASE_VARIABLES
        or (devices and (name in LIBRARY_VARIABLES or name.startswith(DEVICE_PREFIXES)))
        or (network and name.upper() in NETWORK_VARIABLES)
    }
