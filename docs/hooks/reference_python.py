"""The page `reference/python-api`: directives for mkdocstrings, one for each public name of `arl_tangram`."""

import enum
import inspect
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import is_typeddict

from markdown_text import anchor
from pydantic import BaseModel
from reference_http import document

import arl_tangram

__all__ = ["render", "sections"]

INTRO = """\
# Python API

Import every name from `arl_tangram`; other packages are internal.

```python
from arl_tangram import Tangram
```

`AsyncTangram` has the same methods as `Tangram`, to be awaited. [Timeouts](timeouts.md) lists the time limits of the
methods.
"""
CLIENTS = ("Tangram", "AsyncTangram")


def sections() -> dict[str, list[str]]:
    """Return every public name of the package, by the section that shows it."""
    found: dict[str, list[str]] = {title: [] for title in ("Clients", "Functions", "Classes", "Types", "Errors")}
    names = sorted(arl_tangram.__all__, key=str.lower)
    for name in sorted(names, key=lambda name: CLIENTS.index(name) if name in CLIENTS else len(CLIENTS)):
        found[_section(name, getattr(arl_tangram, name))].append(name)
    return found


def render() -> str:
    schemas = document()["components"]["schemas"]
    parts = [INTRO]
    for title, names in sections().items():
        parts.append(f"## {title} {anchor(title.lower())}\n")
        parts.extend(_directive(name, getattr(arl_tangram, name), schemas) for name in names)
    return "\n".join(parts)


def _section(name: str, value: object) -> str:
    if name in CLIENTS:
        return "Clients"
    if not inspect.isclass(value):
        return "Functions" if inspect.isfunction(value) else "Types"
    if issubclass(value, Exception):
        return "Errors"
    return "Types" if _has_fields(value) or issubclass(value, enum.Enum) else "Classes"


def _directive(name: str, value: object, schemas: Iterable[str]) -> str:
    """Return the directive of a name. Fields of models that cross HTTP are on the page of the HTTP API."""
    lines = [f"::: arl_tangram.{name}"]
    more = ""
    if inspect.isclass(value):
        lines += ["    options:"]
        if issubclass(value, enum.Enum):
            lines += ["      members: false"]
            more = (
                f"Values: {', '.join(f'`{each.value}`' for each in value)}. See [States and outcomes](outcomes.md).\n"
            )
        elif _has_fields(value) and name not in schemas:
            lines += ["      show_if_no_docstring: true"]
        else:
            lines += [f"      members: {[*_members(value)]}"]
            more = f"Fields: [{name}](http-api.md#schema-{name.lower()})\n" if name in schemas else ""
    return "\n".join([*lines, "", more])


def _has_fields(cls: type) -> bool:
    """Return True for a model, a dataclass and a TypedDict."""
    return issubclass(cls, BaseModel) or is_dataclass(cls) or is_typeddict(cls)


def _members(cls: type) -> Iterable[str]:
    """Yield the documented public members, those of the class before those that it inherits from this project."""
    seen: set[str] = set()
    for owner in cls.__mro__:
        if not owner.__module__.startswith("arl_"):
            continue
        for name, value in vars(owner).items():
            function = value.fget if isinstance(value, property) else value
            if name.startswith("_") or name in seen or name in getattr(cls, "model_fields", {}):
                continue
            seen.add(name)
            if inspect.isfunction(function) and function.__doc__:
                yield name
