"""What a process that failed said of it."""

import re

__all__ = ["why_it_ended"]

ERROR = re.compile(r"[\w.]+: ")
"""The last line of a traceback; all before it have more words, or are indented."""


def why_it_ended(words: str) -> str:
    """Of several errors the first: what a worker ended with is said before what its end led to.

    Errors of CUDA have several lines, of which the last ones are advice.
    """
    lines = [line.rstrip() for line in words.splitlines() if line.strip()]
    return next((line for line in lines if ERROR.match(line)), lines[-1] if lines else "it ended without a word")
