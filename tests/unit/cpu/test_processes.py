"""Test the signals to processes of an environment."""

import os
import signal

import pytest

from arl_cpu.launcher.linux.processes import ProcessInfo, resume


def test_stopped_processes_resume_children_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # A shell that runs before its job is continued finds it stopped, and `wait` then gives up.
    signalled: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append((pid, number)))
    shell, job, worker_of_job = ProcessInfo(90, 500, 1), ProcessInfo(3, 501, 90), ProcessInfo(4, 501, 3)
    resume([job, shell, worker_of_job])
    assert signalled == [(4, signal.SIGCONT), (3, signal.SIGCONT), (90, signal.SIGCONT)]
