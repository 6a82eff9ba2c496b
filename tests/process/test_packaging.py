"""Test the wheels of both distributions: contents, dependencies and a client with only the SDK."""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
SDK_PACKAGES = {"arl_tangram", "arl_wire", "arl_core"}
SERVER_REQUIREMENTS = {"fastapi", "sqlalchemy", "asyncpg", "uvicorn", "alembic", "numpy", "opentelemetry-sdk"}
CLIENT = """
import sys, uuid
import arl_tangram
client = arl_tangram.Tangram("http://127.0.0.1:9", api_key="none", retry_timeout_s=0)
try:
    client.get(uuid.UUID(int=1))
except arl_tangram.Unavailable as error:
    print(type(error).__name__)
print(sorted(name for name in ("arl_bench", "arl_gateway", "arl_store", "fastapi", "numpy") if name in sys.modules))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build both wheels without a network: the build backend is among the development packages."""
    out = tmp_path_factory.mktemp("wheels")
    built = {}
    for name, folder in (("sdk", ROOT), ("server", ROOT / "services")):
        command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out / name, folder]
        subprocess.run([sys.executable, "-m", *map(str, command)], check=True, capture_output=True)
        (built[name],) = (out / name).glob("*.whl")
    return built


def packages_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name.split("/")[0] for name in archive.namelist() if ".dist-info" not in name}


def requirements_of(wheel: Path) -> list[Requirement]:
    """Return the packages that the wheel requires without any extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = (Requirement(line.removeprefix("Requires-Dist: ")) for line in lines if line.startswith("Requires-Dist"))
    return [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]


def names_of(requirements: list[Requirement]) -> set[str]:
    return {each.name for each in requirements}


def closure(requirements: list[Requirement]) -> set[str]:
    """Return the names of the installed distributions that satisfy these requirements and theirs."""
    done: set[tuple[str, str]] = set()
    left = [(each.name, extra) for each in requirements for extra in ("", *each.extras)]
    while left:
        name, extra = left.pop()
        name = re.sub(r"[-_.]+", "-", name).lower()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        for needed in map(Requirement, installed_requirements(name)):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                left += [(needed.name, each) for each in ("", *needed.extras)]
    return {name for name, _ in done}


def installed_requirements(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # needed on another platform or Python only
        return []


def link_distributions(names: set[str], site: Path) -> None:
    """Link the files of this environment's distributions into another one's directory of packages."""
    for name in names:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:  # needed on another platform or Python only
            continue
        for file in files:
            if file.parts[0] != "..":
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(file.locate())).resolve())


@pytest.fixture
def readable_directory() -> Iterator[Path]:
    """Yield a directory outside of the checkout that the accounts of the services can read, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="tangram-wheels-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_sdk_wheel_contains_only_client_code(wheels: dict[str, Path]) -> None:
    assert packages_of(wheels["sdk"]) == SDK_PACKAGES
    assert not names_of(requirements_of(wheels["sdk"])) & SERVER_REQUIREMENTS


def test_server_wheel_requires_the_sdk_and_repeats_none_of_its_packages(wheels: dict[str, Path]) -> None:
    assert not packages_of(wheels["server"]) & SDK_PACKAGES
    assert "arl-tangram" in names_of(requirements_of(wheels["server"]))


def test_server_wheel_contains_migrations_and_benchmarks(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["server"]) as archive:
        names = archive.namelist()
    assert "arl_store/migrations/versions/0001_first_schema.py" in names
    assert "arl_bench/cli/bench.py" in names


def test_installed_packages_admit_the_oldest_supported_python() -> None:
    """A pin that needs a later patch release cannot be installed where the distribution's Python is older."""
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    oldest = min(
        SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    ).version
    refused = {
        each.name: each.metadata["Requires-Python"]
        for each in distributions()
        if each.name.lower() in pinned and f"{oldest}.0" not in SpecifierSet(each.metadata.get("Requires-Python") or "")
    }
    assert refused == {}


def test_client_runs_with_only_the_sdk_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    """The requirements are links to this environment's, so no network is needed."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheels["sdk"]) as archive:
        archive.extractall(site)
    link_distributions(closure(requirements_of(wheels["sdk"])), site)
    python = home / "bin" / "python"
    ran = subprocess.run([python, "-I", "-c", CLIENT], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.stdout.split("\n")[:2] == ["Unavailable", "[]"], ran.stderr
    bench = [
        python,
        "-I",
        "-c",
        "from arl_tangram.cli import main; import sys; sys.argv = ['tangram', 'bench']; main()",
    ]
    refused = subprocess.run(bench, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "arl-tangram-server" in refused.stderr


@pytest.mark.slow
def test_system_starts_from_installed_wheels_outside_the_checkout(
    wheels: dict[str, Path], readable_directory: Path
) -> None:
    home = readable_directory / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python3*/site-packages")
    required = [*requirements_of(wheels["sdk"]), *requirements_of(wheels["server"])]
    link_distributions(closure(required) - {"arl-tangram"}, site)
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--no-deps", "--no-index"]
    subprocess.run([*map(str, pip), *map(str, wheels.values())], check=True, capture_output=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(readable_directory)}

    def tangram(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [home / "bin" / "tangram", *arguments]
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=120
        )

    directory = ("--dir", str(readable_directory / "state"))
    started = tangram("up", "--detach", *directory, "--unsafe-local")
    try:
        assert started.returncode == 0, started.stderr
        assert tangram("submit", *directory, "--", "sh", "-c", "echo 42").stdout == "42\n"
    finally:
        stopped = tangram("down", "--purge", *directory)
    assert stopped.returncode == 0, stopped.stderr
