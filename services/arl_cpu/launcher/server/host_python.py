"""Whether an interpreter can be run by uids that own nothing."""

import os
import stat
import subprocess
from pathlib import Path

import arl_core
import arl_cpu

__all__ = ["SOURCE_ROOTS", "is_reachable", "is_suitable"]

SOURCE_ROOTS = tuple(dict.fromkeys(str(Path(str(package.__file__)).parents[1]) for package in (arl_core, arl_cpu)))
"""Where this program's own modules are imported from."""
_VERSION = "import sys; sys.exit(sys.version_info < (3, 11))"


def is_reachable(path: str) -> bool:
    """Every directory on the way lets everybody pass."""
    return all(stat.S_IMODE(each.stat().st_mode) & 0o001 for each in (Path(path), *Path(path).parents))


def is_suitable(python: str) -> bool:
    if not os.access(python, os.X_OK) or not is_reachable(os.path.realpath(python)):
        return False
    return subprocess.run([python, "-I", "-S", "-c", _VERSION], check=False).returncode == 0
