"""Options of the form NAME=VALUE."""

from collections.abc import Sequence

from arl_tangram.cli.output import EXIT_USAGE, fail

__all__ = ["parse_amounts", "parse_pairs"]


def parse_pairs(option: str, pairs: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return names and values in order. Ends the command if one has another form."""
    found = []
    for each in pairs or ():
        name, separator, value = each.partition("=")
        if not separator or not name:
            fail(f"{option} {each}: write NAME=VALUE", EXIT_USAGE)
        found.append((name, value))
    return found


def parse_amounts(option: str, pairs: Sequence[str] | None, *, example: str) -> dict[str, int]:
    """Return whole amounts by name. Ends the command if one is not NAME=N."""
    found = {}
    for each in pairs or ():
        name, _, amount = each.rpartition("=")
        if not name or not amount.isdecimal():
            fail(f"{option} {each}: write NAME=N, as in {example}", EXIT_USAGE)
        found[name] = int(amount)
    return found
