"""The page `reference/python-api`: directives for mkdocstrings, one for each public name of `arl_tangram`."""

import inspect

from markdown_text import anchor

import arl_tangram

__all__ = ["render", "sections"]

INTRO = """\
# Python API

Import every name from `arl_tangram`:

```python
from arl_tangram import Tangram, exec_action
```

Other packages of the repository are internal. `AsyncTangram` has the methods of `Tangram`; await them.
"""
CLIENTS = ("Tangram", "AsyncTangram")


def sections() -> dict[str, list[str]]:
    """Return every public name of the package, by the section that shows it."""
    found: dict[str, list[str]] = {"Clients": [], "Functions": [], "Types": [], "Errors": []}
    for name in sorted(arl_tangram.__all__, key=lambda name: (CLIENTS.index(name) if name in CLIENTS else 2, name)):
        found[_section(name, getattr(arl_tangram, name))].append(name)
    return found


def render() -> str:
    parts = [INTRO]
    for title, names in sections().items():
        parts.append(f"## {title} {anchor(title.lower())}\n")
        parts.extend(f"::: arl_tangram.{name}\n" for name in names)
    return "\n".join(parts)


def _section(name: str, value: object) -> str:
    if name in CLIENTS:
        return "Clients"
    if inspect.isclass(value):
        return "Errors" if issubclass(value, Exception) else "Types"
    return "Functions" if callable(value) else "Types"
