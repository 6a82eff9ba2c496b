"""`python -m arl_engines.slurm.node_job`: the process of a Slurm job. It keeps one node running.

Signals of Slurm and of the engine: SIGUSR1 drains the node and then stops it, SIGUSR2 and SIGTERM stop it at once. The
job ends with the node. If the node ends without a signal, it is started again.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from arl_engines.slurm.slurm_commands import parse_duration_s
from arl_local.join.credentials import DamagedCredentials, JoinedNode
from arl_local.state_dir import StateDir

__all__ = ["DRAINING", "STOP_RESERVE_S", "NodeJob", "main"]

DRAINING = "draining"
"""Comment of a job whose node drains. The engine reads it."""
STOP_RESERVE_S = 60.0
"""Seconds before the time limit of the job at which the node must be empty: it is stopped and its files are removed."""
STOP_S = 30.0
"""Seconds after SIGTERM until the node is killed."""
STABLE_AFTER_S = 30.0
"""Seconds after which an exit no longer counts as one soon after the start."""
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
"""Seconds before a restart, or before Slurm is asked again for the time limit: the first time, and at most."""
_NO_LIMIT = frozenset({"UNLIMITED", "NOT_SET"})
_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class NodeJob:
    """A node in a job. The main thread blocks the signals and takes them one by one."""

    def __init__(self, directory: Path, argv: Sequence[str], *, signal_before_s: float) -> None:
        """Run `argv` for the node whose files are in `directory`. Slurm signals `signal_before_s` before the end."""
        self._directory = directory
        self._argv = list(argv)
        self._signal_before_s = signal_before_s
        self._node: subprocess.Popen[bytes] | None = None
        self._drain: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._kill_at = float("inf")
        self._ends_at: float | None = None
        """Monotonic time of the end of the job; infinity without a limit, None until it is known."""
        self._unanswered = 0
        """Number of questions for the time limit that Slurm did not answer."""
        self._start_at = 0.0
        self._quick_exits = 0

    def run(self) -> int:
        """Run until a signal has stopped the node. Return the exit code of the job."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" and not self._has_joined():
            _say("the job was requeued to a machine without the files of the node, and its token is used: giving up")
            return 0
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            self._advance()
            if self._is_stopping and self._node is None:
                break
            wait_s = max(0.0, min(self._next_event_at() - time.monotonic(), 3600.0))
            found = signal.sigtimedwait(_SIGNALS, wait_s)
            if found is not None:
                self._handle(signal.Signals(found.si_signo))
        self._remove_files()
        return 0

    def _handle(self, number: signal.Signals) -> None:
        if number is signal.SIGUSR1:
            self._begin_drain()
        elif number is not signal.SIGCHLD:
            _say(f"{number.name}: stopping the node")
            self._stop()

    def _advance(self) -> None:
        """Act on processes that have ended and on times that have come."""
        now = time.monotonic()
        if self._drain is not None and (code := self._drain.poll()) is not None:
            _say(f"the drain ended with code {code}: stopping the node")
            self._drain = None
            self._stop()
        if self._node is not None and self._node.poll() is not None:
            self._note_exit(now)
        if self._node is not None and now >= self._kill_at:
            _say(f"the node did not stop within {STOP_S:g} s and is killed")
            self._node.kill()
            self._kill_at = float("inf")
        if self._node is None and not self._is_stopping and now >= self._start_at:
            self._start()

    def _next_event_at(self) -> float:
        return self._start_at if self._node is None else self._kill_at

    def _start(self) -> None:
        """Start the node with its walltime. Without an answer of Slurm, try again: the node must not seem endless."""
        now = time.monotonic()
        left_s = time_left_s()
        if left_s is not None:
            self._ends_at = now + left_s
        if self._ends_at is None:
            self._unanswered += 1
            delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._unanswered, 20))
            self._start_at = now + delay_s
            _say(f"the time limit of the job is unknown: asking again in {delay_s:g} s")
            return
        left_s = self._ends_at - now
        walltime = ["--walltime", f"{max(1.0, left_s - STOP_RESERVE_S):.0f}"] if left_s != float("inf") else []
        self._started_at = now
        self._node = _spawn([*self._argv, *walltime])

    def _note_exit(self, now: float) -> None:
        assert self._node is not None
        code, self._node = self._node.returncode, None
        if self._drain is not None:
            # A node that starts again accepts work, so a draining one is not restarted.
            self._drain.kill()
            self._is_stopping = True
        if self._is_stopping:
            return
        self._quick_exits = self._quick_exits + 1 if now - self._started_at < STABLE_AFTER_S else 1
        delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._quick_exits - 1, 20))
        self._start_at = now + delay_s
        _say(f"the node ended with code {code}: starting it again in {delay_s:g} s")

    def _begin_drain(self) -> None:
        if self._drain is not None or self._is_stopping:
            return
        left_s = time_left_s()
        if left_s is None or left_s == float("inf"):
            left_s = self._signal_before_s
        deadline_s = max(0.0, left_s - STOP_RESERVE_S)
        _say(f"SIGUSR1: draining the node within {deadline_s:.0f} s")
        _set_comment(DRAINING)
        state = str(self._directory / "state")
        self._drain = _spawn(
            [sys.executable, "-P", "-m", "arl_local.join.drain", "--dir", state, "--deadline", f"{deadline_s:.1f}"]
        )

    def _stop(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._drain is not None:
            self._drain.kill()
        if self._node is not None:
            self._node.terminate()
            self._kill_at = time.monotonic() + STOP_S

    def _has_joined(self) -> bool:
        try:
            return JoinedNode.load(self._directory / "state") is not None
        except DamagedCredentials:
            return False

    def _remove_files(self) -> None:
        state = self._directory / "state"
        try:
            if state.exists():
                StateDir(state).purge()
            shutil.rmtree(self._directory)
        except OSError as error:
            _say(f"{self._directory} cannot be removed: {error}")


def time_left_s() -> float | None:
    """Return the seconds until the time limit of this job, infinity if it has none; None if Slurm does not answer."""
    output = _run_slurm("squeue", "--noheader", f"--jobs={os.environ.get('SLURM_JOB_ID', '')}", "--format=%L")
    if output is None:
        return None
    return float("inf") if output.strip() in _NO_LIMIT else parse_duration_s(output)


def _set_comment(text: str) -> None:
    _run_slurm("scontrol", "update", f"JobId={os.environ.get('SLURM_JOB_ID', '')}", f"Comment={text}")


def _run_slurm(*argv: str) -> str | None:
    """Return the output of a command of Slurm; None if it failed."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=15, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"{argv[0]}: {error}")
        return None
    return done.stdout


def _spawn(argv: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a process with the output and the environment of the job, without its signal mask."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.Popen(
        argv, env=env, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_child_setup()
    )


def _child_setup() -> Callable[[], None]:
    """Return a function for the child: it takes signals again, and gets SIGTERM when this process dies."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def set_up() -> None:
        """Unblock the signals and ask for the death signal. If the parent is dead by now, end at once."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return set_up


def _say(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}", flush=True)  # noqa: T201 - the output of the job


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m arl_engines.slurm.node_job", description=__doc__)
    parser.add_argument("--dir", required=True, help="directory of the node; DIRECTORY in the command stands for it")
    parser.add_argument("--signal-before", type=float, required=True, metavar="SECONDS")
    parser.add_argument("command", nargs="+", help="command of the node, after --")
    chosen = parser.parse_args(arguments)
    directory = Path(chosen.dir).expanduser()
    argv = [word.replace("DIRECTORY", str(directory)) for word in chosen.command]
    return NodeJob(directory, argv, signal_before_s=chosen.signal_before).run()


if __name__ == "__main__":
    raise SystemExit(main())
