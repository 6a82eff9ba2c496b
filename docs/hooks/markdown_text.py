"""Markdown pieces that the reference pages share."""

from collections.abc import Iterable, Sequence

__all__ = ["anchor", "cell", "code", "table"]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are Markdown; `cell` escapes plain text."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Return plain text for a table cell: one line, without characters that Markdown or HTML would read."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def code(text: str) -> str:
    """Return text as inline code that is safe in a table cell; an empty text stays empty."""
    if not text:
        return ""
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}".replace("|", "\\|")


def anchor(name: str) -> str:
    """Return an attribute list that gives a heading this id."""
    return f"{{ #{name} }}"
