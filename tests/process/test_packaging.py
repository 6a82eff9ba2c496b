"""Test the wheels of both distributions: contents, dependencies and a client with only the SDK."""

import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def requirements_of(wheel: Path) -> set[str]:
    """Return the names of the packages that the wheel requires without any extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = (Requirement(line.removeprefix("Requires-Dist: ")) for line in lines if line.startswith("Requires-Dist"))
    return {each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})}


def closure(names: set[str]) -> set[str]:
    """Return the installed distributions that these names need, themselves included."""
    done: set[str] = set()
    left = [*names]
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in done:
            continue
        done.add(name)
        for line in requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                left.append(needed.name)
    return done


def test_sdk_wheel_contains_only_client_code(wheels: dict[str, Path]) -> None:
    assert packages_of(wheels["sdk"]) == SDK_PACKAGES
    assert not requirements_of(wheels["sdk"]) & SERVER_REQUIREMENTS


def test_server_wheel_requires_the_sdk_and_repeats_none_of_its_packages(wheels: dict[str, Path]) -> None:
    assert not packages_of(wheels["server"]) & SDK_PACKAGES
    assert "arl-tangram" in requirements_of(wheels["server"])


def test_server_wheel_contains_migrations_and_benchmarks(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["server"]) as archive:
        names = archive.namelist()
    assert "arl_store/migrations/versions/0001_first_schema.py" in names
    assert "arl_bench/cli/bench.py" in names


def test_client_runs_with_only_the_sdk_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Copies the SDK's wheel and its requirements from this environment, so no network is needed."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheels["sdk"]) as archive:
        archive.extractall(site)
    for name in closure(requirements_of(wheels["sdk"])):
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:  # needed on another platform or Python only
            continue
        for file in files:
            if file.parts[0] != "..":
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(str(file.locate())).read_bytes())
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
