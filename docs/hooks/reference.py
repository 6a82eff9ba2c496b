"""MkDocs hook: generates the reference pages from the code when the site is built.

Each page has a module of its own next to this file, with a function that returns Markdown. Nothing generated is
committed. The hook also adds CONTRIBUTING.md and CHANGELOG.md as pages, and one navigation entry for each decision.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent)]

import reference_cli  # noqa: E402 - its folder is in the path from here on
import reference_errors  # noqa: E402
import reference_http  # noqa: E402
import reference_metrics  # noqa: E402
import reference_outcomes  # noqa: E402
import reference_python  # noqa: E402
import reference_settings  # noqa: E402

PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": reference_cli.render,
    "reference/http-api.md": reference_http.render,
    "reference/python-api.md": reference_python.render,
    "reference/settings.md": reference_settings.render,
    "reference/metrics.md": reference_metrics.render,
    "reference/errors.md": reference_errors.render,
    "reference/outcomes.md": reference_outcomes.render,
}
ROOT_PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages that are files of the repository's root, where GitHub shows them."""
MOUNT = "/docs/"
"""Path under which the gateway serves the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add every decision to the navigation, in the order of the numbers."""
    decisions = sorted(Path(config.docs_dir, "decisions").glob("[0-9]*.md"))
    _extend_section(config.nav, "decisions/index.md", [{_title(each): f"decisions/{each.name}"} for each in decisions])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    contents = {path: render() for path, render in PAGES.items()}
    contents |= {path: _for_docs((ROOT / name).read_text()) for path, name in ROOT_PAGES.items()}
    for path, content in contents.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_post_template(output_content: str, *, template_name: str, config: MkDocsConfig) -> str:
    """Make the links of the error page absolute below the mount point: it is shown for pages of any depth."""
    if template_name != "404.html":
        return output_content
    return re.sub(r'"/(?!/)', f'"{MOUNT}', output_content)


def _title(page: Path) -> str:
    heading = re.search(r"^# (.+)$", page.read_text(), re.MULTILINE)
    return heading[1] if heading else page.stem


def _extend_section(nav: list[Any] | None, index: str, entries: list[Any]) -> None:
    """Append the entries to the section that starts with the page `index`."""
    for entry in nav or []:
        for section in entry.values() if isinstance(entry, dict) else []:
            if isinstance(section, list):
                if section[:1] == [index]:
                    section.extend(entries)
                _extend_section(section, index, entries)


def _for_docs(text: str) -> str:
    """Return a file of the root as a page: links into `docs/` lose that folder."""
    return re.sub(r"\]\(docs/", "](", text)
