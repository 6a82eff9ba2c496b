"""A check of the settings that the user gave to services, before anything starts."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from arl_kit.child_process import spawn
from arl_kit.settings import CHECK_SETTINGS, EXIT_BAD_SETTINGS
from arl_local.supervisor import ProcessSpec

__all__ = ["BadSettings", "check_settings"]

_TIMEOUT_S = 120.0
"""Longest time of a check, which may import the user's reward functions."""


class BadSettings(Exception):
    """At least one setting is wrong. The message has one line for each."""


async def check_settings(specs: Iterable[ProcessSpec]) -> None:
    """Let each process check its settings, without starting anything. Raises `BadSettings` with all mistakes.

    The processes have the variables that they would be started with.
    """
    found = await asyncio.gather(*map(_problems, specs))
    if problems := list(dict.fromkeys(line for lines in found for line in lines)):
        raise BadSettings("\n".join(problems))


async def _problems(spec: ProcessSpec) -> list[str]:
    process = spawn((*spec.argv, CHECK_SETTINGS), env=spec.env, output=subprocess.PIPE, account=spec.account)
    try:
        output, _ = await asyncio.to_thread(process.communicate, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [f"{spec.name} did not check its settings within {_TIMEOUT_S:.0f} s"]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with processes that it has started
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    if process.returncode in (0, EXIT_BAD_SETTINGS):
        return lines if process.returncode else []
    return [f"{spec.name} ended with code {process.returncode} while it checked its settings: {' '.join(lines[-1:])}"]
