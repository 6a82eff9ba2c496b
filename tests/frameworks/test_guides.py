"""The code blocks of guides for frameworks, in the environment of the frameworks."""

import os
from pathlib import Path

import pytest

from support.doc_blocks import FRAMEWORK_PAGES, blocks_of, interpreters, matches
from support.frameworks import FRAMEWORKS_PYTHON, NEWER_PYTHON, skip_without
from support.system import API_KEY, System

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PACKAGES = {
    "harbor": ("harbor", NEWER_PYTHON),
    "inspect": ("inspect-ai", FRAMEWORKS_PYTHON),
    "mini-swe-agent": ("mini-swe-agent", FRAMEWORKS_PYTHON),
    "nemo-gym-sandbox": ("nemo-gym", NEWER_PYTHON),
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", FRAMEWORK_PAGES)
async def test_code_blocks_run_and_print_what_the_page_shows(page: str, system: System, tmp_path: Path) -> None:
    package, python = PACKAGES[page]
    skip_without(package, python)
    connection = {"TANGRAM_URL": system.url, "TANGRAM_API_KEY": API_KEY, "MSWEA_SILENT_STARTUP": "1"}
    environment = {"PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), **connection}
    async with interpreters(tmp_path, environment, python=python) as runner:
        for block in blocks_of(GUIDES / f"{page}.md"):
            printed = await runner.run(block)
            if block.expected is not None:
                assert matches(block.expected, printed), f"{block.where} printed:\n{printed}"
