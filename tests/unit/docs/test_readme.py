"""Limits of the README, and the files that it links to."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAX_LINES = 250
MAX_WORDS = 1500
ROOT_PAGES = ("README.md", "CONTRIBUTING.md")


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert len(text.split()) <= MAX_WORDS


@pytest.mark.parametrize("name", ROOT_PAGES)
def test_links_lead_to_files(name: str) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", (ROOT / name).read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []
