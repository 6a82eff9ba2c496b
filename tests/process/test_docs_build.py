"""The built documentation: `make docs` without a warning, and nothing from other hosts."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MIN_PAGES = 40
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*\b(?:src|data|srcset)=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect|dns-prefetch|modulepreload|manifest))"""
    r"""[^>]*\bhref=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|url\(["']?(?:https?:)?//[^)]+|@import\s+["'](?:https?:)?//[^"']+"""
)
"""Scripts, styles, fonts and images from another host. A link that a reader follows is none of them."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="`make docs` installs what this test needs"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a strict build: a missing page, a broken link or a wrong anchor fails it."""
    target = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return target


def test_site_has_enough_pages(site: Path) -> None:
    assert len(list(site.rglob("index.html"))) >= MIN_PAGES


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    files = [path for kind in ("*.html", "*.css") for path in site.rglob(kind)]
    assert {str(path.relative_to(site)): found for path in files if (found := LOADED.findall(path.read_text()))} == {}


def test_search_finds_generated_pages(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"] for entry in index["docs"]}
    assert {
        "reference/cli/#tangram-submit",
        "reference/http-api/#submit_action",
        "reference/settings/#gateway",
        "reference/errors/#codes",
        "reference/python-api/#arl_tangram.Tangram",
    } <= found


def test_error_page_works_at_any_depth_below_docs(site: Path) -> None:
    page = (site / "404.html").read_text()
    assert 'href="/docs/assets/' in page
    assert '"search": "/docs/assets/' in page
    assert re.findall(r'"/(?!docs/)[^"]*"', page) == []
