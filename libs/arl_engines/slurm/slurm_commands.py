"""The commands of Slurm: submit, list, signal and cancel jobs."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from arl_engines.engine import ClusterEngineError

__all__ = [
    "JobRefused",
    "JobRequest",
    "SlurmCommands",
    "SlurmJob",
    "SlurmUnanswered",
    "parse_duration_s",
    "parse_jobs",
]

TIMEOUT_S = 20.0
"""Seconds after which a command is killed. Slurm's own timeout of a message is 10 s."""
_FORMAT = "%i|%j|%T|%r|%l|%L|%N|%k"
"""Format of squeue: id, name, state, reason, time limit, time left, Slurm node, comment."""
_UNANSWERED = ("timed out", "zero bytes were transmitted", "connection reset")
"""Parts of messages of Slurm's commands after which the request may have been carried out."""
_DURATION = re.compile(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)")


class JobRefused(ClusterEngineError):
    """Slurm did not accept a job."""


class SlurmUnanswered(ClusterEngineError):
    """Slurm did not answer in time. It may have done what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job that is not over."""

    id: str
    name: str
    state: str
    reason: str = ""
    """Reason for which a pending job waits."""
    time_limit_s: float | None = None
    """Seconds for which it may run; None if it has no limit."""
    time_left_s: float | None = None
    """Seconds until its time limit; None if it has none or has not started."""
    node: str = ""
    """Slurm node on which it runs."""
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job to submit. Secrets are in `env` only: other users can read arguments, and administrators scripts."""

    options: tuple[str, ...]
    script: str
    env: Mapping[str, str] = field(repr=False)
    """Variables of the job; no others of the controller reach it."""


class SlurmCommands:
    """The commands, run as this user on this machine."""

    async def jobs(self, prefix: str) -> dict[str, SlurmJob]:
        """Return the jobs of this user whose name begins with `prefix`, by name. Raises `ClusterEngineError`."""
        return parse_jobs(await _run("squeue", "--me", "--noheader", "--format", _FORMAT), prefix)

    async def submit(self, request: JobRequest) -> str:
        """Submit a job and return its id.

        Raises `JobRefused` with the message of Slurm, and `SlurmUnanswered` if the job may have been accepted.
        """
        env = {name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")}
        words = ("sbatch", "--parsable", f"--export={','.join(request.env)}", *request.options)
        try:
            output = await _run(*words, env=env | dict(request.env), text=request.script)
        except SlurmUnanswered:
            raise
        except ClusterEngineError as error:
            raise JobRefused(str(error)) from None
        return output.strip().partition(";")[0]

    async def signal(self, job: str, name: str) -> None:
        """Send a signal to the script of a running job. Raises `ClusterEngineError`."""
        await _run("scancel", "--batch", f"--signal={name}", job)

    async def cancel(self, job: str) -> None:
        """Cancel a job: its processes get SIGTERM, and SIGKILL after Slurm's KillWait. Raises `ClusterEngineError`."""
        await _run("scancel", job)


def parse_jobs(output: str, prefix: str) -> dict[str, SlurmJob]:
    """Return the jobs of an output of squeue whose name begins with `prefix`, by name.

    A further job of the same name is found under the name, `#` and its id. The engine knows no such node.
    """
    found: dict[str, SlurmJob] = {}
    for line in output.splitlines():
        id, name, state, reason, limit, left, node, comment = line.split("|", 7)
        if not name.startswith(prefix):
            continue
        is_pending = state == "PENDING"
        found[name if name not in found else f"{name}#{id}"] = SlurmJob(
            id=id,
            name=name,
            state=state,
            reason=reason,
            time_limit_s=parse_duration_s(limit),
            time_left_s=None if is_pending else parse_duration_s(left),
            node=node,
            comment=comment if comment != "(null)" else "",
        )
    return found


def parse_duration_s(text: str, *, is_option: bool = False) -> float | None:
    """Return the seconds of a duration of Slurm, `[DAYS-]HH:MM:SS` or shorter; None for UNLIMITED and other words.

    A single number means seconds in an output. With `is_option`, it means minutes, as for `sbatch --time`; after days,
    the first number means hours.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, last = (int(part) if part is not None else None for part in match.groups())
    if is_option and days is not None:
        numbers = [part for part in (hours, minutes, last) if part is not None]
        hours, minutes, last = (*numbers, 0, 0)[:3]
    elif is_option and minutes is None:
        minutes, last = last, 0
    return 86_400.0 * (days or 0) + 3600 * (hours or 0) + 60 * (minutes or 0) + (last or 0)


async def _run(*argv: str, env: Mapping[str, str] | None = None, text: str | None = None) -> str:
    """Return the output of a command. Raises `ClusterEngineError` with its message."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=env,
            stdin=asyncio.subprocess.PIPE if text is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C stops the controller, which finishes what it has begun
            umask=0o077,
        )
    except OSError as error:
        raise ClusterEngineError(f"{argv[0]} cannot be started: {error}") from None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, errors = await process.communicate(text.encode() if text is not None else None)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise SlurmUnanswered(f"{argv[0]} did not answer within {TIMEOUT_S:g} s") from None
    if process.returncode != 0:
        message = _message(errors.decode(errors="replace"))
        is_unanswered = any(sign in message.lower() for sign in _UNANSWERED)
        raise (SlurmUnanswered if is_unanswered else ClusterEngineError)(f"{argv[0]}: {message}")
    return output.decode(errors="replace")


def _message(errors: str) -> str:
    """Return the messages of a command in one line, without its name."""
    lines: Sequence[str] = [line.strip() for line in errors.splitlines() if line.strip()]
    return "; ".join(re.sub(r"^\w+: (error|fatal): ", "", line) for line in lines)[:300] or "failed without a message"
