"""Test that the attacks are contained by a launcher without root and without its own cgroup."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SYSTEM_PYTHON = Path("/usr/bin/python3")
PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "pytest_asyncio")
LAUNCHER = ("typing_extensions", "zstandard")
"""Packages that the tests of the launcher import."""
SOME_UID = 23456
EXECUTOR_SUITES = ("conformance", "cpu", "launcher", "sockets")
SUITES = (
    "tests/hostile",
    "tests/service/programs",
    *(f"tests/service/cpu/test_executor_{name}.py" for name in EXECUTOR_SUITES),
)
QUICK = "not (executor and slow) and not namespaces+python"
"""All attacks. Slow executor tests do not depend on the user; without root's cgroups the agent in
Python is the one that `namespaces` uses."""
SUPPORT = (
    "tests/support/sandbox.py",
    "tests/support/work.py",
    "tests/support/images.py",
    "tests/support/conditions.py",
    "tests/support/network.py",
    *(f"tests/support/{name}" for name in ("probe.py", "probe_differences.py", "probe_suite.py", "probes")),
    "pyproject.toml",
)


def same_python() -> bool:
    """Return True if every user can run a system Python of the tests' version."""
    if not SYSTEM_PYTHON.exists():
        return False
    command = [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == str(
        sys.version_info[:2]
    )


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(not same_python(), reason="needs a system Python of the version of the tests")
def test_attacks_are_contained_for_an_unprivileged_user() -> None:
    home = Path("/tmp") / f"tangram-user-{os.getpid()}"  # pytest's own directories are closed to others
    home.mkdir()
    try:
        copy_of_the_tree(home)
        result = subprocess.run(
            [SYSTEM_PYTHON, "-m", "pytest", "-m", "not root", "-k", QUICK, "-rs", *SUITES],
            cwd=home,
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(home),
                "TMPDIR": str(home),
                "PYTHONPATH": ":".join(str(home / name) for name in ("libs", "services", "packages")),
            },
            user=SOME_UID,
            group=SOME_UID,
            extra_groups=[],
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr
    finally:
        shutil.rmtree(home)


def copy_of_the_tree(home: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("libs", "services"):
        shutil.copytree(REPOSITORY / name, home / name, ignore=ignored)
    for name in (*SUITES, *SUPPORT):
        source, target = REPOSITORY / name, home / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    (home / "packages").mkdir()
    for name in (*PYTEST, *LAUNCHER):
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            continue
        origin = Path(found.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, home / "packages" / name, ignore=ignored)
        else:
            shutil.copy(origin, home / "packages")
    for distribution in ("pytest", "pytest_asyncio"):
        package = Path(str(importlib.util.find_spec(distribution).origin)).parent  # type: ignore[union-attr]
        for metadata in package.parent.glob(f"{distribution}-*.dist-info"):
            shutil.copytree(metadata, home / "packages" / metadata.name)
    for path in (home, *home.rglob("*")):
        os.chown(path, SOME_UID, SOME_UID)
