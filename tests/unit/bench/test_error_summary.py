"""Summaries of a failed process's error output."""

import pytest

from arl_bench.harness.process_usage import summarize_error

TRACEBACK = """Traceback (most recent call last):
  File "worker.py", line 3, in read
    found: dict = load()
json.JSONDecodeError: it is none
"""
CUDA = (
    "torch.AcceleratorError: CUDA error: out of memory\nFor debugging consider CUDA_LAUNCH_BLOCKING=1\nCompile it anew."
)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (TRACEBACK, "json.JSONDecodeError: it is none"),
        (f"{TRACEBACK}\nThe above was the cause of\n\nWorkerDied: it ended", "json.JSONDecodeError: it is none"),
        (CUDA, "torch.AcceleratorError: CUDA error: out of memory"),
        ("Killed\n", "Killed"),
        (" \n", "it ended without a word"),
    ],
)
def test_summary_is_first_error_without_code_lines_or_advice(words: str, why: str) -> None:
    assert summarize_error(words) == why
