"""The record of a template."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

__all__ = ["HOST_TEMPLATE", "Template", "TemplateError", "check_name"]


HOST_TEMPLATE = "host"
"""Name of the read-only system directories of the node. Always available and never in the store."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The record of a template: its layers, variables and working directory."""

    name: str
    digest: str
    """Digest of the source. Two templates with the same digest have the same files."""
    source: str
    layers: tuple[str, ...]
    """Directory names of its layers, lowest first."""
    bytes: int
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    home: str | None = None
    user: str | None = None
    """Default user. None: root, or the only user of an environment without owners."""
    has_owners: bool = False
    """True if its files keep the owners of the image. Otherwise they belong to one user."""
    left_out: int = 0
    """Number of devices and pipes that were omitted."""

    def dumps(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def loads(cls, text: str) -> "Template":
        """Parse a record. Raises ValueError for a record that this version did not write."""
        try:
            content = json.loads(text)
            return cls(**{**content, "layers": tuple(content["layers"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"the record of the template is invalid: {error}") from None


def check_name(name: str) -> None:
    """Raise `TemplateError` if the name cannot be the name of a template."""
    if name == HOST_TEMPLATE:
        raise TemplateError("`host` is the name of the machine's own system directories; choose another name")
    if not _NAME.fullmatch(name):
        raise TemplateError(
            f"{name!r} is not a valid name: use up to 64 letters, digits, `.`, `_` and `-`, starting with a letter or"
            " digit"
        )


class TemplateError(Exception):
    """An invalid template or image. The message gives the reason and a remedy."""
