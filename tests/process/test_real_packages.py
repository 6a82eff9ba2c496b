"""Test that suites of well-known packages give the same results inside and outside an environment."""

import io
import subprocess
import sys
import tarfile
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from arl_tangram import Action, ActionOutcome, Tangram
from support.machine import Machine, a_machine

pytestmark = pytest.mark.slow

PYTHON = f"{sys.base_prefix}/bin/python3"
"""The same interpreter inside and outside, without the packages of this test's virtual environment."""
RUNNER = ("pytest==8.4.2", "pytest-xdist==3.8.0")
PACKAGES = ("toolz==1.0.0", "jmespath==1.0.1", "click==8.1.8")
PYTEST = (PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml")
VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""These variables disable pytest plugins that are installed on this machine."""
LIMIT_S = 300
FETCHED = "report.xml"


@dataclass(frozen=True)
class Sources:
    """A package's source tree and the test runner, on disk and as archives."""

    name: str
    tree: Path
    runner: Path

    @property
    def files(self) -> dict[str, bytes]:
        return {"package.tgz": _archive(self.tree), "runner.tgz": _archive(self.runner)}


def _archive(directory: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(directory, arcname=".")
    return packed.getvalue()


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        pytest.skip(f"the package index cannot be used: {done.stderr.strip().splitlines()[-1:]}")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("runner")
    _pip("install", "--no-compile", "--only-binary", ":all:", "--target", str(target), *RUNNER)
    return target


def downloaded(package: str, runner: Path, directory: Path) -> Sources:
    _pip("download", "--no-deps", "--no-binary", ":all:", "-d", str(directory), package)
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    (tree,) = (path for path in directory.iterdir() if path.is_dir())
    return Sources(package.partition("=")[0], tree, runner)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with a_machine(tmp_path_factory.mktemp("machine") / "state") as machine:
        yield machine


def outcomes(report: bytes) -> dict[str, str]:
    """Return the result of each test by its name."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        ended = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        found[f"{case.get('classname')}::{case.get('name')}"] = ended
    return found


def outside(sources: Sources) -> dict[str, str]:
    path = f"{sources.runner}:{sources.tree}/src:{sources.tree}"
    environment = VARIABLES | {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": path}
    done = subprocess.run(PYTEST, cwd=sources.tree, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout
    return outcomes((sources.tree / FETCHED).read_bytes())


def unpack(client: Tangram, sources: Sources, trajectory: str) -> None:
    ended = client.run(
        task="packages",
        trajectory=trajectory,
        argv=["sh", "-c", "mkdir runner && tar xzf runner.tgz -C runner && tar xzf package.tgz && rm *.tgz"],
        files=sources.files,
        memory_mib=1024,
        disk_mib=128,
    )
    assert ended.outcome is ActionOutcome.OK, ended


def run_suite(client: Tangram, trajectory: str, *options: str, cores: int) -> Action:
    return client.run(
        task="packages",
        trajectory=trajectory,
        argv=[*PYTEST, *options],
        env=VARIABLES | {"PYTHONPATH": "runner:src:."},
        fetch=[FETCHED],
        cpu=cores,
        memory_mib=1024,
        disk_mib=128,
        timeout_s=LIMIT_S,
    )


def fetched(action: Action) -> bytes:
    assert action.result is not None
    return b64decode(action.result.files[FETCHED])


@pytest.mark.parametrize("package", PACKAGES)
def test_package_suite_gives_the_same_results_inside_and_outside(
    machine: Machine, runner: Path, tmp_path: Path, package: str
) -> None:
    sources = downloaded(package, runner, tmp_path)
    expected = outside(sources)
    with machine.client() as client:
        cores = sum(node.capacity.get("cpu_milli", 0) for node in client.nodes().items) // 1000
        unpack(client, sources, sources.name)
        for width in (1, 2)[:cores]:
            for options in ((), ("-p", "xdist.plugin", "-n", "auto")):
                ended = run_suite(client, sources.name, *options, cores=width)
                assert ended.outcome is ActionOutcome.OK, ended.result and ended.result.stdout.text
                assert outcomes(fetched(ended)) == expected, (width, options)
        client.end_trajectory("packages", sources.name)


def test_environment_keeps_edits_across_edit_test_and_patch_actions(
    machine: Machine, runner: Path, tmp_path: Path
) -> None:
    """As an agent works on a repository: its edit breaks a test and its patch repairs it."""
    sources = downloaded(PACKAGES[0], runner, tmp_path)
    edit = "sed -i.orig 's/^def identity(x):/&\\n    x = None/' toolz/functoolz.py"
    with machine.client() as client:
        unpack(client, sources, "chain")

        def step(*argv: str) -> Action:
            return client.run(task="packages", trajectory="chain", argv=argv, memory_mib=1024, disk_mib=128)

        assert step("sh", "-c", edit).outcome is ActionOutcome.OK
        failing = run_suite(client, "chain", cores=1)
        assert (failing.outcome, failing.result and failing.result.exit_code) == (ActionOutcome.USER_ERROR, 1)
        patch = "cd toolz && diff -u functoolz.py functoolz.py.orig | patch functoolz.py"
        assert step("sh", "-c", patch).outcome is ActionOutcome.OK
        passing = run_suite(client, "chain", cores=1)
        assert passing.outcome is ActionOutcome.OK, passing
        client.end_trajectory("packages", "chain")
