"""The agent in C, compiled on this machine at its first use and cached."""

import hashlib
import os
import platform
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

__all__ = ["AGENT_KINDS", "AUTO", "PYTHON", "NativeAgentUnavailable", "open_native_agent"]

AUTO, NATIVE, PYTHON = "auto", "native", "python"
AGENT_KINDS = (AUTO, NATIVE, PYTHON)
"""Allowed settings. `auto` chooses the better available agent for each environment."""

_SOURCES = Path(__file__).with_name("native")
_COMPILERS = ("cc", "gcc", "clang")
# Static, because a template does not contain the libraries.
_FLAGS = ("-std=gnu11", "-O2", "-static", "-Wall", "-Wextra")
_COMMAND_TIMEOUT_S = 60
_CHECK_OPTION = "--check"


class NativeAgentUnavailable(Exception):
    """A C agent that this machine cannot provide. The message gives the reason."""


def open_native_agent() -> int:
    """Open the program for execution; compile it if necessary. Raises NativeAgentUnavailable."""
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    sources = sorted(_SOURCES.glob("*.c"))
    key = hashlib.sha256(repr((platform.machine(), _FLAGS)).encode())
    for path in (*sources, *sorted(_SOURCES.glob("*.h"))):
        key.update(path.read_bytes())
    try:
        program = _cache_directory() / f"agent-{key.hexdigest()[:32]}"
        if not _is_working(program):
            if compiler is None:
                raise NativeAgentUnavailable(
                    f"no C compiler is installed ({', '.join(_COMPILERS)}); the C agent saves 3 MiB per environment"
                )
            _compile(compiler, sources, program)
        return os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NativeAgentUnavailable(str(error)) from error


def _is_working(program: Path) -> bool:
    """Return True if the program runs. A full disk, a power failure or a change of machine may have broken it."""
    try:
        _run([str(program), _CHECK_OPTION])
    except (OSError, NativeAgentUnavailable):
        return False
    return True


def _cache_directory() -> Path:
    """Return a directory that only this user can write: every environment executes its files.

    Raises NativeAgentUnavailable.
    """
    directory = _home() / ".cache" / "tangram"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise NativeAgentUnavailable(f"{directory} is writable by other users")
    return directory


def _home() -> Path:
    """Return the user's home directory. Raises NativeAgentUnavailable: in a container a uid may have no entry."""
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError as error:
        raise NativeAgentUnavailable(f"uid {os.geteuid()} has no home directory") from error


def _compile(compiler: str, sources: list[Path], program: Path) -> None:
    """Compile and test the program before it gets its final name."""
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        made = f"{scratch}/agent"
        _run([compiler, *_FLAGS, "-o", made, *map(str, sources)])
        _run([made, _CHECK_OPTION])
        # Root of an environment could change the settings in /proc of a process whose program it can read.
        os.chmod(made, 0o711)  # noqa: S103 # the directory is the user's own
        with open(made, "rb") as file:
            os.fsync(file.fileno())
        os.rename(made, program)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NativeAgentUnavailable(f"{command[0]} did not finish within {_COMMAND_TIMEOUT_S} s") from error
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if line.strip()), "no error message")
        raise NativeAgentUnavailable(f"{command[0]} failed: {said}")
