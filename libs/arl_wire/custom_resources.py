"""Resources that nodes declare by name, beside those that are known."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

__all__ = ["RESERVED_NAMES", "CustomResources", "ResourceName"]

RESERVED_NAMES = frozenset(
    {
        *("cpu", "cpu_milli", "cpu_cores", "cores", "memory", "memory_mib", "memory_bytes", "disk", "disk_mib"),
        *("disk_bytes", "pids", "gpu", "concurrency", "slots"),
    }
)
"""They have fields of their own, are no node's to declare, or are what metrics call those that have."""
MAX_AMOUNT = 1 << 40


def _check_not_reserved(name: str) -> str:
    if name in RESERVED_NAMES:
        raise ValueError(f"`{name}` is a resource with a field of its own; name another")
    return name


ResourceName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9_]*([./-][a-z0-9_]+)*$", max_length=64),
    AfterValidator(_check_not_reserved),
]
CustomResources = Annotated[dict[ResourceName, Annotated[int, Field(ge=1, le=MAX_AMOUNT)]], Field(max_length=16)]
"""Amounts in whole units, whatever a unit is: a device, Mbit/s."""
