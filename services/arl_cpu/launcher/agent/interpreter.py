"""The command that runs Python source with the `python3` of the environment, so that its packages are available."""

from pathlib import Path

__all__ = ["MISSING_PYTHON", "RESIDENT_COMMAND"]

MISSING_PYTHON = "the template has no python3 in its PATH, which `source` needs; use `argv`, or another template"
_RESIDENT_SOURCE = Path(__file__).with_name("resident.py").read_text()
# Before any import: no file in an action's directory may shadow a module of the resident.
_DROP_WORKING_DIRECTORY = "import sys; sys.path[:1] = [each for each in sys.path[:1] if each]"
_RUN_RESIDENT = f"exec(compile({_RESIDENT_SOURCE!r}, 'resident.py', 'exec'), {{'__name__': 'resident'}})"
RESIDENT_COMMAND = ("python3", "-c", f"{_DROP_WORKING_DIRECTORY}; {_RUN_RESIDENT}")
"""Command that expects a socket as file 3. The message `once` with a request makes it run that source and end."""
