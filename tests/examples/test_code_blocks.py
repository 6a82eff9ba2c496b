"""The code blocks of the README, of docs/start and of docs/guides run against a system of `tangram up`."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from arl_tangram.transport.connection import resolve_connection
from support.doc_blocks import FRAMEWORK_PAGES, blocks_of, interpreters, matches
from support.machine import a_machine

ROOT = Path(__file__).resolve().parents[2]
FAST_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "start").glob("*.md"))]
SLOW_PAGES = sorted(page for page in (ROOT / "docs" / "guides").glob("*.md") if page.stem not in FRAMEWORK_PAGES)
PAGES = [
    *(pytest.param(page, id=page.stem) for page in FAST_PAGES if blocks_of(page)),
    *(pytest.param(page, id=f"guides-{page.stem}", marks=pytest.mark.slow) for page in SLOW_PAGES if blocks_of(page)),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The variables of a shell in which a reader follows a page."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")}
    with a_machine(tmp_path_factory.mktemp("examples") / "state") as machine:
        connection = resolve_connection(directory=machine.directory)
        yield kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TANGRAM_DIR": str(machine.directory),
            "TANGRAM_URL": connection.url,
            "TANGRAM_API_KEY": connection.api_key,
        }


@pytest.mark.parametrize("page", PAGES)
async def test_code_blocks_run_and_print_what_the_page_shows(
    page: Path, environment: Mapping[str, str], tmp_path: Path
) -> None:
    async with interpreters(tmp_path, environment) as runner:
        for block in blocks_of(page):
            printed = await runner.run(block)
            if block.expected is not None:
                assert matches(block.expected, printed), f"{block.where} printed:\n{printed}"
