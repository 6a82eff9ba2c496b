"""The navigation of the documentation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
MIN_PAGES = 40
MAX_CLICKS = 2


class LenientLoader(yaml.SafeLoader):
    """A loader that ignores tags with Python objects, which MkDocs resolves."""


LenientLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
NAVIGATION = yaml.load((ROOT / "mkdocs.yml").read_text(), LenientLoader)["nav"]


def pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for each in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
        yield from pages(each)


def test_navigation_has_enough_pages_and_no_page_twice() -> None:
    found = list(pages(NAVIGATION))
    assert len(found) >= MIN_PAGES
    assert len(found) == len(set(found))


def test_pages_of_the_repository_are_in_the_navigation() -> None:
    docs = ROOT / "docs"
    written = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    decisions = {name for name in written if name.startswith("decisions/0")}
    assert written - decisions <= set(pages(NAVIGATION))
