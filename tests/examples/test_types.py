"""The Python blocks of README, docs/start and docs/guides pass mypy --strict, except those that need a framework."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.doc_blocks import FRAMEWORK_PAGES, blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("start/*.md")), *sorted((ROOT / "docs").glob("guides/*.md"))]
PAGES = [page for page in PAGES if page.stem not in FRAMEWORK_PAGES]


@pytest.mark.slow
def test_python_blocks_pass_strict_type_checks(tmp_path: Path) -> None:
    for page in PAGES:
        if blocks := [block.source for block in blocks_of(page) if block.language == "python"]:
            (tmp_path / f"{page.stem.lower().replace('-', '_')}_page.py").write_text("\n".join(blocks))
    modules = sorted(map(str, tmp_path.glob("*_page.py")))
    assert len(modules) > 5
    options = ("--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}")
    command = [sys.executable, "-m", "mypy", *options, *modules]
    done = subprocess.run(command, cwd=ROOT / "libs", capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
