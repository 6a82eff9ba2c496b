"""What the name of a member of a layer means. Pure."""

from dataclasses import dataclass
from typing import Literal

from .refused import Refused

__all__ = ["Place", "place_of", "relative"]

_MARK, _OPAQUE, _AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."


@dataclass(frozen=True, slots=True)
class Place:
    """An entry `name` in the directory `parent`, both below the root of the layer."""

    parent: str
    name: str
    what: Literal["entry", "whiteout", "opaque"] = "entry"
    """A whiteout hides `name` of the layers below, an opaque mark all that they have in `parent`."""


def place_of(member: str) -> Place | None:
    """None for the root itself and for notes of other storage drivers. Raises Refused for a path that leads out."""
    path = relative(member)
    if not path:
        return None
    parent, _, name = path.rpartition("/")
    if any(part.startswith(_MARK) for part in parent.split("/")):
        raise Refused(f"{member!r} lies below a mark of the archive's own")
    if name == _OPAQUE:
        return Place(parent, name, "opaque")
    if name.startswith(_AUFS):
        return None
    if not name.startswith(_MARK):
        return Place(parent, name)
    hidden = name.removeprefix(_MARK)
    if hidden in ("", ".", ".."):
        raise Refused(f"{member!r} hides no file")
    return Place(parent, hidden, "whiteout")


def relative(path: str) -> str:
    """Taken from the root of the layer, as container runtimes do with absolute ones."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise Refused(f"{path!r} leads out of the archive")
    return "/".join(parts)
