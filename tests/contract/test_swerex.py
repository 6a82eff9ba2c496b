"""Test that SWE-ReX's client, unmodified, gets the same answers from us as from its own server."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import API_KEY, running_system

PACKAGES = ("swe-rex==1.4.0", "aiohttp")
CLIENT = Path(__file__).parent / "clients" / "swerex_runtime.py"
NOT_THE_SAME = {
    # A shell that has just begun shows its prompt there.
    **{name: {"output": ""} for name in ("create", "second", "anew")},
    "sourced": {"output": "started\nbash: /nowhere: No such file or directory\n"},
    # Of jobs, and of what a signal ended, nothing is told beside the exit code.
    "signal": {"output": "", "exit_code": 137},
    "in the background": {"output": "waited\n", "exit_code": None},
    "idle interrupt": {"output": "", "exit_code": 0},
    "traced": {"output": "++++ echo hi\nhi\n++++ set +x\n"},
    # Theirs puts lines together by `;`.
    "aliases": {"output": "hello\n", "exit_code": 0},
    "interactive": {"raised": "swerex.exceptions.SwerexException"},
    "end of it": {"raised": "swerex.exceptions.SwerexException"},
    "exit": {"raised": "pexpect.exceptions.EOF"},  # whose message is a dump of theirs
    "after an exit": {"raised": "swerex.exceptions.SessionDoesNotExistError"},
}
"""Our answers for the cases in which they differ from SWE-ReX's server."""
BY_ANOTHER_MARK = {"function", "heredoc", "an array"}
"""Cases in which SWE-ReX's server waits for another string and returns it as `expect_string`."""

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def answers(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Provide the answers of SWE-ReX's server and of ours, by case."""
    directory = tmp_path_factory.mktemp("swerex")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", directory, *PACKAGES)
    found = await asyncio.to_thread(subprocess.run, pip, capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        pytest.skip(f"not to be installed: {found.stderr[-300:]}")
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces") as system:
        host = f"{system.url}/t/agents/trajectories/r1/swerex"
        command = (sys.executable, CLIENT, directory, host, API_KEY)
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=300)
    await databases.drop(owner_url)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return dict(json.loads(ran.stdout))


def test_swerex_client_gets_equal_answers_from_both_servers(answers: dict[str, Any]) -> None:
    cases = {name: both for name, both in answers.items() if isinstance(both[0], dict) and name not in NOT_THE_SAME}
    assert len(cases) > 75
    theirs = {name: _comparable(name, both[0]) for name, both in cases.items()}
    ours = {name: _comparable(name, both[1]) for name, both in cases.items()}
    assert ours == theirs
    assert answers["alive"] == [True, True]


@pytest.mark.parametrize("name", NOT_THE_SAME)
def test_known_differences_from_swerex_are_as_documented(answers: dict[str, Any], name: str) -> None:
    theirs, ours = answers[name]
    assert ours != theirs, "it is the same by now"
    assert ours.items() >= NOT_THE_SAME[name].items()


def test_uploaded_directory_is_equal_on_both_servers(answers: dict[str, Any]) -> None:
    theirs, ours = answers["tree"]
    assert ours == theirs
    assert "./below/run.sh\nran\n" in ours


def test_command_is_faster_than_on_the_swerex_server(answers: dict[str, Any]) -> None:
    theirs, ours = answers["seconds"]
    assert ours < theirs


def _comparable(name: str, answer: dict[str, Any]) -> dict[str, Any]:
    if name not in BY_ANOTHER_MARK:
        return answer
    return {key: value for key, value in answer.items() if key != "expect_string"}
