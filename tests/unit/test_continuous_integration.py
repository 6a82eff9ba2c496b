"""Test `.ci/run` with other programs in place of apt-get and make."""

import shutil
import subprocess
from pathlib import Path

import pytest

CI_RUN = Path(__file__).parents[2] / ".ci" / "run"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return the only directory of PATH, without a Java compiler and Slurm. `make` writes its arguments."""
    for name in ("bash", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    write_program(tmp_path / "id", "echo 0")
    write_program(tmp_path / "make", "echo make $*")
    return tmp_path


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run_ci(programs: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CI_RUN], env={"PATH": str(programs)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("failing", ["update", "install"])
def test_failed_installation_is_printed_and_fails(programs: Path, failing: str) -> None:
    write_program(
        programs / "apt-get", f'echo "output of $1"; [ "$1" != {failing} ] || {{ echo "E: broken" >&2; exit 100; }}'
    )
    done = run_ci(programs)
    assert done.returncode == 1
    assert f"output of {failing}\n" in done.stdout
    assert "make" not in done.stdout
    assert done.stderr.startswith("E: broken\n.ci/run: apt-get could not install default-jdk-headless")


def test_successful_installation_is_followed_by_the_tests(programs: Path) -> None:
    write_program(programs / "apt-get", 'echo "$@" >&2')
    done = run_ci(programs)
    assert done.returncode == 0
    assert "default-jdk-headless" in done.stderr
    assert done.stderr.endswith("slurm-wlm munge docker-registry\n")
    assert done.stdout.startswith("make test lint docs ")


def test_machine_without_slurm_installs_only_slurm(programs: Path) -> None:
    for name in ("javac", "docker-registry"):
        write_program(programs / name, "exit 0")
    write_program(programs / "apt-get", 'echo "$@" >&2')
    done = run_ci(programs)
    assert done.stderr.endswith("--no-install-recommends slurm-wlm munge\n")


def test_complete_machine_installs_nothing(programs: Path) -> None:
    for name in ("javac", "sbatch", "docker-registry"):
        write_program(programs / name, "exit 0")
    write_program(programs / "apt-get", "exit 1")
    done = run_ci(programs)
    assert (done.returncode, done.stderr) == (0, "")


def test_machine_that_cannot_install_says_which_tests_are_skipped(programs: Path) -> None:
    done = run_ci(programs)
    assert done.returncode == 0
    assert done.stdout.startswith("make test lint docs ")
    assert "skipped: the test of the Java client\n" in done.stderr
    assert "skipped: the tests of the Slurm engine\n" in done.stderr
    assert "skipped: the tests of images from a registry\n" in done.stderr
