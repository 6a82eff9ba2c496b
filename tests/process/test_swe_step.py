"""A training step of coding agents as users run it: images by name, root in the set-up, no network afterwards, forks.

32 trajectories fix 8 repositories, each in its own image. Four branches of each trajectory try different patches, and
the tests of the repository give the reward. The registry is killed while images are pulled.
"""

import asyncio
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pip
import pytest
import pytest_asyncio

from arl_core.domain.states import WaitReason
from arl_tangram import ActionOutcome, AsyncTangram
from support.conditions import eventually
from support.images import a_layer, a_root, member, packed
from support.machine import Machine, a_machine
from support.network import PUBLIC, SmallInternet, a_small_internet
from support.registry import Registry, a_registry
from support.sandbox import HAS_USERS
from support.system import free_ports

TASK = "swe"
IMAGES, PER_IMAGE, BRANCHES = 8, 4, 4
INDEX = "packages.example"
UNUSED = {"test", "idlelib", "lib2to3", "tkinter", "ensurepip", "site-packages", "__pycache__", "config-3.11"}
"""Parts of the standard library that the images leave out."""
AGENT = 1000
"""User of the images."""
SIZES: dict[str, Any] = {"memory_mib": 96, "disk_mib": 64}

pytestmark = [pytest.mark.slow, HAS_USERS]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with a_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def port() -> int:
    return free_ports(1)[0]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def internet(port: int) -> AsyncIterator[SmallInternet]:
    async with a_small_internet(port) as internet:
        internet.names[INDEX] = [PUBLIC]
        internet.publish("dependency", "OFFSET = 40\n")
        yield internet


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(
    tmp_path_factory: pytest.TempPathFactory, registry: Registry, internet: SmallInternet
) -> AsyncIterator[Machine]:
    directory = tmp_path_factory.mktemp("swe")
    settings = directory / "registries.toml"
    settings.write_text(f'[registries."{registry.host}"]\nplain_http = true\n')
    variables = {"TANGRAM_REGISTRIES_FILE": str(settings), "TANGRAM_IMAGE_GIVE_UP_S": "300", **internet.variables}
    entering = a_machine(directory / "state", **variables)
    machine = await asyncio.to_thread(entering.__enter__)
    try:
        yield machine
    finally:
        await asyncio.to_thread(entering.__exit__, None, None, None)


@pytest.fixture(scope="module")
def images(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Push one image for each repository. All have the same layer with Python, and a small one of their own."""
    root = a_root(tmp_path_factory.mktemp("root"))
    python = add_python(root)
    base, names = packed(root), []
    for number in range(IMAGES):
        name = f"repository-{number}:1"
        config = {"WorkingDir": "/repository", "User": "agent", "Env": [f"PATH={python.parent}:/bin"]}
        registry.push(name, [base, a_repository(number)], config=config)
        names.append(f"{registry.host}/{name}")
    return names


def add_python(root: Path) -> Path:
    """Copy this Python with its standard library and pip at their own places. Return the path of its program."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(
        library,
        root / library.relative_to("/"),
        ignore=lambda _, names: [each for each in names if each in UNUSED or each.endswith(".a")],
        symlinks=True,
    )
    shutil.copytree(Path(pip.__file__).parent, root / "opt/pip/pip", ignore=shutil.ignore_patterns("__pycache__"))
    target = root / program.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, target)
    (target.parent / "python3").symlink_to(target.name)
    needed = subprocess.run(
        ["ldd", program, *library.glob("lib-dynload/*.so")], capture_output=True, text=True, check=False
    ).stdout
    for line in needed.splitlines():
        path = next((word for word in line.split() if word.startswith("/") and not word.endswith(":")), None)
        if path is not None and not (root / path.lstrip("/")).exists():
            (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path.lstrip("/"))
    return program


def a_repository(number: int) -> bytes:
    """Return a layer with a wrong function and its test, owned by the agent."""
    own = {"uid": AGENT, "gid": AGENT}
    test = (
        "import sys; sys.path.insert(0, '/packages')\n"
        "import unittest\nfrom dependency import OFFSET\nfrom code_under_test import answer\n\n"
        "class TestAnswer(unittest.TestCase):\n"
        f"    def test_answer(self):\n        self.assertEqual(answer(OFFSET), OFFSET + {number % BRANCHES})\n"
    )
    return a_layer(
        member("etc/passwd", f"root:x:0:0::/root:/bin/sh\nagent:x:{AGENT}:{AGENT}::/repository:/bin/sh\n"),
        member("repository/", **own),
        member("repository/code_under_test.py", "def answer(value):\n    raise NotImplementedError\n", **own),
        member("repository/test_answer.py", test, **own),
    )


async def play(tangram: AsyncTangram, image: str, name: str, port: int) -> list[float]:
    """Run one trajectory and return the reward of each branch. Raises for every failure that is not the agent's."""
    async with tangram.environment(task=TASK, trajectory=name, template=image, **SIZES) as environment:
        install = ["python3", "-m", "pip", "install", "--no-cache-dir", "--no-compile", "--target", "/packages"]
        index = ["-i", f"http://{INDEX}:{port}/simple/", "--trusted-host", INDEX, "dependency"]
        setup = await environment.run(
            argv=[*install, *index],
            user="root",
            env={"PYTHONPATH": "/opt/pip", "HOME": "/tmp"},
            network={"allow": [f"{INDEX}:{port}"]},
            timeout_s=300,
        )
        assert setup.outcome is ActionOutcome.OK, setup
        source = f"import urllib.request; urllib.request.urlopen('http://{INDEX}:{port}/simple/dependency/', timeout=5)"
        looking = await environment.run(argv=["python3", "-c", source])
        assert looking.outcome is ActionOutcome.USER_ERROR, "the agent has no network"
        who = await environment.run(argv=["id", "-u"])
        assert who.stdout == f"{AGENT}\n"
        branches = await environment.fork(BRANCHES)
        try:
            return list(await asyncio.gather(*(reward(branch, patch) for patch, branch in enumerate(branches))))
        finally:
            await asyncio.gather(*(branch.end() for branch in branches))


async def reward(branch: Any, patch: int) -> float:
    """Apply a patch and return 1 if the tests pass. An infrastructure error is no reward."""
    patched = f"def answer(value):\n    return value + {patch}\n"
    writing = f"open('code_under_test.py', 'w').write({patched!r})"
    assert (await branch.run(argv=["python3", "-c", writing])).outcome is ActionOutcome.OK
    tested = await branch.run(argv=["python3", "-m", "unittest", "-q", "test_answer"], timeout_s=120)
    assert tested.outcome in (ActionOutcome.OK, ActionOutcome.USER_ERROR), tested
    return float(tested.outcome is ActionOutcome.OK)


async def test_every_branch_gets_the_reward_of_its_patch_although_the_registry_is_killed(
    machine: Machine, images: list[str], registry: Registry, internet: SmallInternet, port: int
) -> None:
    playing: dict[tuple[int, int], asyncio.Task[list[float]]] = {}

    def begin(chosen: range) -> None:
        for image in chosen:
            for number in range(PER_IMAGE):
                name = f"rollout-{image}-{number}"
                playing[image, number] = asyncio.create_task(play(tangram, images[image], name, port))

    async def until(condition: Callable[[AsyncTangram], Awaitable[bool]]) -> None:
        """Wait for a condition, or raise the error of a trajectory that has failed."""

        async def holds() -> bool:
            for each in playing.values():
                if each.done():
                    each.result()
            return await condition(tangram)

        await eventually(holds, timeout_s=240)

    async with machine.async_client() as tangram:
        try:
            begin(range(IMAGES // 2))
            await until(is_any_image_ready)
            await asyncio.to_thread(registry.stop)
            begin(range(IMAGES // 2, IMAGES))
            await until(is_any_action_waiting_for_the_registry)
            await asyncio.to_thread(registry.start)
            rewards = dict(zip(playing, await asyncio.gather(*playing.values()), strict=True))
        finally:
            for each in playing.values():
                each.cancel()
    assert len(rewards) == IMAGES * PER_IMAGE
    for (image, _), found in rewards.items():
        assert found == [float(patch == image % BRANCHES) for patch in range(BRANCHES)]


async def is_any_image_ready(tangram: AsyncTangram) -> bool:
    return any(image.state == "ready" for image in (await tangram.images()).items)


async def is_any_action_waiting_for_the_registry(tangram: AsyncTangram) -> bool:
    async for action in tangram.list(task=TASK, state="queued"):
        wait = (await tangram.explain(action.id)).wait
        is_pulling = wait is not None and wait.reason is WaitReason.PULLING_IMAGE
        if is_pulling and "does not respond" in ((wait.image and wait.image.message) or ""):
            return True
    return False
