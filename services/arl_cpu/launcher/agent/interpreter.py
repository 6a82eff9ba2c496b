"""Python source by the `python3` of the environment, whose packages it shall see."""

from pathlib import Path

__all__ = ["MISSING_PYTHON", "RESIDENT_COMMAND"]

MISSING_PYTHON = (
    "this template has no python3 in its PATH, which `source` is run by; give `argv`, or use another template"
)
_RESIDENT_SOURCE = Path(__file__).with_name("resident.py").read_text()
# Before any import: nothing in the directory of an action is a module of this one.
_DROP_WORKING_DIRECTORY = "import sys; sys.path[:1] = [each for each in sys.path[:1] if each]"
_RUN_RESIDENT = f"exec(compile({_RESIDENT_SOURCE!r}, 'resident.py', 'exec'), {{'__name__': 'resident'}})"
RESIDENT_COMMAND = ("python3", "-c", f"{_DROP_WORKING_DIRECTORY}; {_RUN_RESIDENT}")
"""Expects a socket as file 3: `once` and an order there make it run that source and end."""
