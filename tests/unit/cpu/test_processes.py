"""Test the signals to processes of an environment, and the imports of its agent."""

import os
import signal
import subprocess
import sys

import pytest

from arl_cpu.launcher.linux.processes import ProcessInfo, resume


def test_stopped_processes_resume_children_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # A shell that runs before its job is continued finds it stopped, and `wait` then gives up.
    signalled: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append((pid, number)))
    shell, job, worker_of_job = ProcessInfo(90, 500, 1), ProcessInfo(3, 501, 90), ProcessInfo(4, 501, 3)
    resume([job, shell, worker_of_job])
    assert signalled == [(4, signal.SIGCONT), (3, signal.SIGCONT), (90, signal.SIGCONT)]


def test_agent_without_its_import_path_imports_nothing() -> None:
    code = f"""
import os, sys
from arl_cpu.launcher.agent.agent_process import disable_imports
os.chdir({os.path.dirname(os.__file__)!r})
disable_imports()
import wave
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'wave'" in done.stderr
