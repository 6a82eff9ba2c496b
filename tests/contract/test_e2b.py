"""Test that E2B's clients, unmodified, work against our server with their three environment variables alone."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import API_KEY, System, running_system

CLIENTS = Path(__file__).parent / "clients"
NEWEST, OLDEST = "2.63.0", "2.10.2"
EXPECTED = {
    "command": ["out\n", "err\n", 0],
    "exit_code": ["CommandExitException", 3],
    "timeout": ["TimeoutException", None],
    "variables": "yes\n",
    "background": [True, "got:x\ny\n", False],
    "large_output": 2_000_000,
    "files": [["stream", "é x"], "/tmp/d/moved", "text", 2_000_000, [True, False], [False, True]],
    "missing_file": ["FileNotFoundException", None],
    "signed_url": ["signed", 401],
    "terminal": ["CommandExitException", 5],
    "watched": [["f", "create"], ["f", "write"]],
    "forked": [["signed", "signed"], True, True, True],
    "listed": [True],
    "paused": [True, False, False, True, "signed"],
    "ports": ["signed", True, True],
    "unsupported": True,
    "killed": [True, False, False, "SandboxNotRunningException"],
}
EXPECTED_OF_OLDEST = {
    **EXPECTED,
    "missing_file": ["NotFoundException", None],
    "killed": [True, False, False, "TimeoutException"],
}
MISSING_IN_OLDEST = ("background", "forked", "paused", "unsupported")
"""Cases with methods that the oldest client does not have."""
EXPECTED_OF_ASYNC = {
    **{name: said for name, said in EXPECTED.items() if name != "unsupported"},
    "callbacks": ["a\n", "b\n"],
    "concurrent": [f"{number}\n" for number in range(8)],
    "terminal": [["CommandExitException", 5], True],
    "cancelled": [True, True],
}

JS_PACKAGE = "e2b@2.51.0"
EXPECTED_OF_JS = {
    **{name: said for name, said in EXPECTED.items() if name not in ("unsupported", "forked")},
    "exit_code": ["CommandExitError", 3],
    "timeout": ["TimeoutError", None],
    "missing_file": ["FileNotFoundError", None],
    "concurrent": [f"{number}\n" for number in range(4)],
    "terminal": [["CommandExitError", 5], True],
    "watched": ["f create", "f write"],
    "paused": [True, False, True, "signed"],
    "killed": [True, False, False],
}

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    gateway = {"TANGRAM_PORTS_DOMAIN": "ports.example"}
    async with running_system(owner_url, driver="namespaces", overrides={"gateway": gateway}) as system:
        yield system
    await databases.drop(owner_url)


async def results_of(system: System, command: Sequence[Path | str], cwd: Path | None = None) -> dict[str, Any]:
    """Run a client and return its results by case."""
    urls = {"E2B_API_URL": system.url, "E2B_SANDBOX_URL": system.url}
    env = {**os.environ, **urls, "E2B_API_KEY": "e2b_" + API_KEY.removeprefix("tk_")}
    ran = await asyncio.to_thread(
        subprocess.run, command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return dict(json.loads(ran.stdout))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Provide the directories of the installed clients by version."""
    found = {}
    for version in (NEWEST, OLDEST):
        found[version] = tmp_path_factory.mktemp(f"e2b-{version}")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", found[version], f"e2b=={version}")
        ran = await asyncio.to_thread(subprocess.run, pip, capture_output=True, text=True, check=False, timeout=300)
        if ran.returncode != 0:
            pytest.skip(f"not to be installed: {ran.stderr[-300:]}")
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def results(system: System, packages: dict[str, Path]) -> dict[str, Any]:
    return await results_of(system, (sys.executable, CLIENTS / "e2b_sandbox.py", packages[NEWEST]))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def results_of_oldest(system: System, packages: dict[str, Path]) -> dict[str, Any]:
    return await results_of(system, (sys.executable, CLIENTS / "e2b_sandbox.py", packages[OLDEST]))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def async_results(system: System, packages: dict[str, Path]) -> dict[str, Any]:
    return await results_of(system, (sys.executable, CLIENTS / "e2b_async_sandbox.py", packages[NEWEST]))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def js_results(system: System, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Provide the results of the JavaScript client."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    directory = tmp_path_factory.mktemp("e2b-js")
    npm = ("npm", "install", "--no-audit", "--no-fund", "--prefix", directory, JS_PACKAGE)
    ran = await asyncio.to_thread(subprocess.run, npm, capture_output=True, text=True, check=False, timeout=300)
    if ran.returncode != 0:
        pytest.skip(f"not to be installed: {ran.stderr[-300:]}")
    return await results_of(system, ("node", CLIENTS / "e2b_sandbox.mjs"), cwd=directory)


@pytest.mark.parametrize("case", EXPECTED)
def test_e2b_client_gets_the_results_of_a_real_sandbox(results: dict[str, Any], case: str) -> None:
    assert results[case] == EXPECTED[case]


def test_every_case_of_the_client_is_checked(results: dict[str, Any]) -> None:
    assert results.keys() == EXPECTED.keys()


@pytest.mark.parametrize("case", [case for case in EXPECTED_OF_OLDEST if case not in MISSING_IN_OLDEST])
def test_oldest_client_gets_the_results_of_a_real_sandbox(results_of_oldest: dict[str, Any], case: str) -> None:
    assert results_of_oldest[case] == EXPECTED_OF_OLDEST[case]


@pytest.mark.parametrize("case", EXPECTED_OF_ASYNC)
def test_asynchronous_client_gets_the_results_of_a_real_sandbox(async_results: dict[str, Any], case: str) -> None:
    assert async_results[case] == EXPECTED_OF_ASYNC[case]


def test_every_case_of_the_asynchronous_client_is_checked(async_results: dict[str, Any]) -> None:
    assert async_results.keys() == EXPECTED_OF_ASYNC.keys()


@pytest.mark.parametrize("case", EXPECTED_OF_JS)
def test_javascript_client_gets_the_results_of_a_real_sandbox(js_results: dict[str, Any], case: str) -> None:
    assert js_results[case] == EXPECTED_OF_JS[case]


def test_every_case_of_the_javascript_client_is_checked(js_results: dict[str, Any]) -> None:
    assert js_results.keys() == EXPECTED_OF_JS.keys()
