"""The meaning of a layer member's name. Pure functions."""

from dataclasses import dataclass
from typing import Literal

from arl_cpu.templates.template import TemplateError

__all__ = ["LayerEntry", "parse_member_name", "relative_path"]

_WHITEOUT_PREFIX, _OPAQUE_NAME, _AUFS_PREFIX = ".wh.", ".wh..wh..opq", ".wh..wh."


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """An entry `name` in the directory `parent`, relative to the root of the layer."""

    parent: str
    name: str
    kind: Literal["entry", "whiteout", "opaque"] = "entry"
    """Kind of the entry.

    A whiteout hides `name` of lower layers; an opaque mark hides all their entries in `parent`.
    """


def parse_member_name(member: str) -> LayerEntry | None:
    """Parse a member's name. Return None for the root itself and for metadata of other storage drivers.

    Raises TemplateError for a path that leads out of the layer.
    """
    path = relative_path(member)
    if not path:
        return None
    parent, _, name = path.rpartition("/")
    if any(part.startswith(_WHITEOUT_PREFIX) for part in parent.split("/")):
        raise TemplateError(f"{member!r} is below a whiteout or opaque mark of the same archive")
    if name == _OPAQUE_NAME:
        return LayerEntry(parent, name, "opaque")
    if name.startswith(_AUFS_PREFIX):
        return None
    if not name.startswith(_WHITEOUT_PREFIX):
        return LayerEntry(parent, name)
    hidden = name.removeprefix(_WHITEOUT_PREFIX)
    if hidden in ("", ".", ".."):
        raise TemplateError(f"{member!r} is a whiteout without a name")
    return LayerEntry(parent, hidden, "whiteout")


def relative_path(path: str) -> str:
    """Return the path relative to the root of the layer. Absolute paths are accepted, as in container runtimes."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise TemplateError(f"{path!r} leads out of the archive")
    return "/".join(parts)
