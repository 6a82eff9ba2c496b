"""Test the sandbox `tangram` of Inspect: its conformance suite, and a task with an infrastructure error."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from support.conditions import eventually
from support.frameworks import run_framework, skip_without
from support.system import System

CLIENTS = Path(__file__).parent / "clients"
LOOP = ("asyncio_default_fixture_loop_scope=module", "asyncio_default_test_loop_scope=module", "asyncio_mode=auto")
UNSUPPORTED = {"test_exec_as_user"}
"""Checks that write to the system directories, which are read-only in `host`: this one adds a user."""
MIN_CHECKS = 44

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def inspect() -> None:
    skip_without("inspect-ai")


async def test_sandbox_passes_the_conformance_suite(system: System, tmp_path: Path) -> None:
    options = ("-q", "--noconftest", "-c", "/dev/null", "--rootdir", CLIENTS, "-p", "no:cacheprovider")
    settings = [part for each in LOOP for part in ("-o", each)]
    report = tmp_path / "report.xml"
    client = CLIENTS / "inspect_conformance.py"
    ran = await run_framework(system, "-m", "pytest", *options, *settings, f"--junitxml={report}", client)
    assert report.exists(), ran.stdout + ran.stderr
    checks = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        check.attrib["name"] for check in checks if check.find("failure") is not None or check.find("error") is not None
    }
    assert failed == UNSUPPORTED, ran.stdout[-4000:]
    assert len(checks) >= MIN_CHECKS


async def test_task_scores_samples_and_gives_none_after_an_infrastructure_error(system: System, tmp_path: Path) -> None:
    (tmp_path / "sandbox.yaml").write_text("{task: inspect-task, template: host, env: {GREETING: hello}}")
    ran = await run_framework(system, CLIENTS / "inspect_task.py", tmp_path, variables={"HOME": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["scores"] == [{"compare_file": 1.0}, {"compare_file": 0.0}, {}]
    assert [error is not None for error in said["errors"]] == [False, False, True]
    assert "Conflict" in said["errors"][2] or "ending" in said["errors"][2] or "ended" in said["errors"][2]

    async def all_have_ended() -> bool:
        async with system.client() as api:
            found = await api.get("/v1/environments", params={"task": "inspect-task", "state": "live"})
        return found.json()["items"] == []

    await eventually(all_have_ended)
