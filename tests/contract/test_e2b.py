"""Test that E2B's client, unmodified, works against our server with its three environment variables alone."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import API_KEY, running_system

PACKAGES = ("e2b==2.63.0",)
CLIENT = Path(__file__).parent / "clients" / "e2b_sandbox.py"
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
    "unsupported": True,
    "killed": [True, False, False, "SandboxNotRunningException"],
}

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def results(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Provide the client's results by case."""
    directory = tmp_path_factory.mktemp("e2b")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", directory, *PACKAGES)
    found = await asyncio.to_thread(subprocess.run, pip, capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        pytest.skip(f"not to be installed: {found.stderr[-300:]}")
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces") as system:
        urls = {"E2B_API_URL": system.url, "E2B_SANDBOX_URL": system.url}
        env = {**os.environ, **urls, "E2B_API_KEY": "e2b_" + API_KEY.removeprefix("tk_")}
        command = (sys.executable, CLIENT, directory)
        ran = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True, timeout=300)
    await databases.drop(owner_url)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return dict(json.loads(ran.stdout))


@pytest.mark.parametrize("case", EXPECTED)
def test_e2b_client_gets_the_results_of_a_real_sandbox(results: dict[str, Any], case: str) -> None:
    assert results[case] == EXPECTED[case]


def test_every_case_of_the_client_is_checked(results: dict[str, Any]) -> None:
    assert results.keys() == EXPECTED.keys()
