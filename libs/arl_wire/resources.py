"""Resources that nodes declare by name, beside those that are known."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

__all__ = ["KNOWN", "ResourceName", "Resources"]

KNOWN = frozenset({"cpu", "cpu_milli", "memory_mib", "disk_mib", "pids", "gpu", "concurrency"})
"""They have fields of their own, or are no node's to declare."""
MOST = 1 << 40


def _is_free(name: str) -> str:
    if name in KNOWN:
        raise ValueError(f"`{name}` is a resource with a field of its own; name another")
    return name


ResourceName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9_]*([./-][a-z0-9_]+)*$", max_length=64),
    AfterValidator(_is_free),
]
Resources = Annotated[dict[ResourceName, Annotated[int, Field(ge=1, le=MOST)]], Field(max_length=16)]
"""Amounts in whole units, whatever a unit is: a device, Mbit/s."""
