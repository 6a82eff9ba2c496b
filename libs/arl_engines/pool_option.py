"""The option `--pool NAME:kind=cpu,min=1,max=4`."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from arl_engines.engine import PoolSpec

__all__ = ["parse_pool"]

KINDS = ("cpu", "gpu", "api")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_FORM = "NAME:kind=cpu,min=1,max=4"
MAX_NODES = 500
"""Maximum number of nodes of a pool. A cell has at most 500 nodes."""


def parse_pool(text: str) -> PoolSpec:
    """Parse a pool. Raises ValueError with a message that names the wrong part."""
    name, _, rest = text.partition(":")
    if not _NAME.fullmatch(name):
        raise ValueError(f"--pool {text!r}: the name must be lower-case letters, digits and '-', as in {_FORM}")
    given: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if key not in _FIELDS or not equals:
            raise ValueError(f"--pool {text!r}: {pair!r} is not one of {', '.join(f'{each}=…' for each in _FIELDS)}")
        field, parse = _FIELDS[key]
        if field in given:
            raise ValueError(f"--pool {text!r}: {key} is given twice")
        try:
            given[field] = parse(value)
        except ValueError as error:
            raise ValueError(f"--pool {text!r}: {key} {error}") from None
    given.setdefault("max_nodes", max(1, given.get("min_nodes", 1)))
    spec = PoolSpec(name=name, **given)
    if spec.max_nodes < spec.min_nodes:
        raise ValueError(f"--pool {text!r}: max must not be below min")
    if spec.kind != "cpu" and not spec.is_fixed:
        raise ValueError(f"--pool {text!r}: only pools of kind cpu scale; give a {spec.kind} pool equal min and max")
    if spec.kind == "cpu" and spec.min_nodes == 0 and spec.cores is None:
        raise ValueError(f"--pool {text!r}: min=0 needs cores=…, because an empty pool does not show its nodes' cores")
    return spec


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.isdecimal() or not least <= int(value) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(value)

    return parse


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 86_400:
        raise ValueError("must be a number of seconds from 0.1 to 86400")
    return seconds


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return parse


_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "kind": ("kind", _one_of(*KINDS)),
    "min": ("min_nodes", _number(0, MAX_NODES)),
    "max": ("max_nodes", _number(1, MAX_NODES)),
    "cores": ("cores", _number(1, 4096)),
    "driver": ("driver", _one_of("auto", "namespaces", "landlock", "unsafe-local", "simulated")),
    "target": ("target_s", _seconds),
    "cooldown": ("cooldown_s", _seconds),
    "drain": ("drain_s", _seconds),
}
