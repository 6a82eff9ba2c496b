"""What a process that failed said of it."""

import re

__all__ = ["summarize_error"]

ERROR_LINE = re.compile(r"[\w.]+: ")
"""The last line of a traceback; all before it have more words, or are indented."""


def summarize_error(output: str) -> str:
    """Of several errors the first: what a worker ended with is said before what its end led to.

    Errors of CUDA have several lines, of which the last ones are advice.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if ERROR_LINE.match(line)), lines[-1] if lines else "it ended without a word")
