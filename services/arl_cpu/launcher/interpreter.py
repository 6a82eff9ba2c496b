"""Python source by the `python3` of the environment, whose packages it shall see."""

from pathlib import Path

__all__ = ["COMMAND", "MISSING"]

MISSING = "this template has no python3 in its PATH, which `source` is run by; give `argv`, or use another template"
_RESIDENT = Path(__file__).with_name("resident.py").read_text()
# In a namespace of its own, so that the source finds `__main__` empty.
COMMAND = ("python3", "-c", f"exec(compile({_RESIDENT!r}, 'resident.py', 'exec'), {{'__name__': 'resident'}})")
"""Expects a socket as file 3: `once` and an order there make it run that source and end."""
