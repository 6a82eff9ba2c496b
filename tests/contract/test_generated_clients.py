"""Test generated clients: generate them from `openapi/gateway.json`, compile and use them."""

import asyncio
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import API_KEY, System, running_system

DOCUMENT = Path(__file__).parents[2] / "openapi" / "gateway.json"
CLIENTS = Path(__file__).parent / "clients"
PYTHON_GENERATOR = "openapi-python-client==0.29.1"

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="unsafe-local", cores=2) as system:
        yield system
    await databases.drop(owner_url)


def run(*command: str | Path, cwd: Path) -> str:
    found = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, f"{' '.join(map(str, command))}\n{found.stdout[-4000:]}\n{found.stderr[-4000:]}"
    return found.stdout


def install(*command: str | Path, cwd: Path) -> None:
    """Install the generator, or skip the test if that fails."""
    found = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        pytest.skip(f"{Path(command[0]).name} could not install the generator: {found.stderr[-300:]}")


async def used(system: System, *command: str | Path, cwd: Path) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(await asyncio.to_thread(run, *command, system.url, API_KEY, cwd=cwd))
    return seen


def assert_all_of_it_worked(seen: dict[str, Any]) -> None:
    assert seen["again"] == seen["ids"][0]
    assert seen["outcomes"] == ["ok"] * 3
    assert seen["printed"] == {"2": "4\n", "3": "9\n", "4": "16\n"}
    assert seen["exit_codes"] == [0] * 3
    assert sorted(seen["listed"]) == sorted(seen["ids"])
    assert seen["problem"] == {"code": "validation_failed", "status": 422, "fields": ["demand.memory_mib"]}


async def test_generated_python_client_submits_waits_pages_and_reads_problems(system: System, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install(python, "-m", "pip", "install", "--quiet", PYTHON_GENERATOR, cwd=tmp_path)
    said = run(
        *(python.with_name("openapi-python-client"), "generate", "--path", DOCUMENT, "--meta", "none"),
        *("--config", CLIENTS / "python-client.yaml", "--output-path", tmp_path / "tangram_client"),
        cwd=tmp_path,
    )
    assert "WARNING" not in said, said
    shutil.copy(CLIENTS / "consumer.py", tmp_path)
    strict = ("--strict", "--no-incremental", "--config-file=", "--python-executable", python)
    run(sys.executable, "-m", "mypy", *strict, "consumer.py", cwd=tmp_path)
    assert_all_of_it_worked(await used(system, python, "consumer.py", cwd=tmp_path))


async def test_generated_typescript_client_submits_waits_pages_and_reads_problems(
    system: System, tmp_path: Path
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    for name in ("package.json", "tsconfig.json", "consumer.ts"):
        shutil.copy(CLIENTS / name, tmp_path)
    install("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=tmp_path)
    tools = tmp_path / "node_modules" / ".bin"
    generated = ("-o", "tangram_client", "-c", "@hey-api/client-fetch")
    run(tools / "openapi-ts", "-i", DOCUMENT, *generated, cwd=tmp_path)
    run(tools / "tsc", cwd=tmp_path)
    assert_all_of_it_worked(await used(system, "node", "built/consumer.js", cwd=tmp_path))
