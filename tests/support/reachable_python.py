"""An interpreter with the packages of this checkout that any user can run."""

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arl_kit.child_process import UnixAccount

__all__ = ["STRANGER", "a_reachable_python", "an_open_directory"]

STRANGER = UnixAccount(uid=0x60000001, gid=0x60000000)
CHECKOUT = Path(__file__).parents[2]


@contextmanager
def an_open_directory() -> Iterator[Path]:
    """Create a directory that every user can reach, and remove it at the end. pytest closes its own to others."""
    with tempfile.TemporaryDirectory(prefix="tangram-open-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


def a_reachable_python(directory: Path) -> str:
    """Return an interpreter below an open directory. Skips the test if no user but ours can run one."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for base in (sys.executable, f"/usr/bin/{version}"):
        if os.path.exists(base) and _can_run(base):
            break
    else:
        pytest.skip("no interpreter of this version that an unprivileged user can run")
    venv = directory / "venv"
    subprocess.run([base, "-m", "venv", "--without-pip", venv], check=True)
    packages = [sysconfig.get_path("purelib"), str(CHECKOUT / "libs"), str(CHECKOUT / "services")]
    (venv / "lib" / version / "site-packages" / "ours.pth").write_text("\n".join(packages) + "\n")
    return str(venv / "bin" / "python")


def _can_run(python: str) -> bool:
    try:
        done = subprocess.run([python, "-V"], user=STRANGER.uid, group=STRANGER.gid, extra_groups=[], check=False)
    except PermissionError:
        return False
    return done.returncode == 0
