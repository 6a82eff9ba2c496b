"""One system for the tests of all frameworks, with a template in which an agent can work."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template
from arl_cpu.templates.template_store import TemplateStore
from support.images import PROGRAMS, a_root
from support.postgres import Databases
from support.system import System, running_system

AGENT_PROGRAMS = (*PROGRAMS, "bash", "cp", "wc", "find", "test", "grep", "head", "uname", "tar", "gzip")


@pytest.fixture(scope="session")
def templates() -> Iterator[Path]:
    """Provide a template store with the template `agent`, all of which is writable."""
    directory = Path(tempfile.mkdtemp(prefix="tangram-templates-"))
    directory.chmod(0o755)
    root = a_root(directory / "root", programs=AGENT_PROGRAMS, files={"app/README": "the task's directory\n"})
    (root / "tmp").mkdir(mode=0o777)
    budget = ImportBudget(max_bytes=1 << 30, max_members=10_000)
    import_template(TemplateStore(directory / "templates"), root, "agent", budget=budget)
    yield directory / "templates"
    shutil.rmtree(directory)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def system(databases: Databases, templates: Path) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    overrides = {name: {"TANGRAM_TEMPLATES_DIR": str(templates)} for name in ("launcher", "cpu")}
    async with running_system(owner_url, driver="namespaces", overrides=overrides) as system:
        yield system
    await databases.drop(owner_url)
