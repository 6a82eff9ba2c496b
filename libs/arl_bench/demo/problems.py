"""Coding problems in the HumanEval JSONL format (arXiv 2107.03374), bundled or from a file."""

import gzip
import json
import zlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from arl_wire.errors import FieldError, ValidationFailed

__all__ = ["CodingProblem", "bundled_problems", "read_problems"]

REQUIRED_FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingProblem:
    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str
    wrong_solution: str | None = None
    """A plausible wrong solution; an extension of the format."""

    def statement(self) -> dict[str, str]:
        """Return the fields that the judging programs need."""
        return {name: getattr(self, name) for name in ("prompt", "entry_point", "canonical_solution", "test")}


def bundled_problems() -> tuple[CodingProblem, ...]:
    return _parse_problems(files("arl_bench.demo").joinpath("problems.jsonl").read_bytes(), "the bundled problems")


def read_problems(path: Path) -> tuple[CodingProblem, ...]:
    """Read problems from a plain or gzipped file. Raises `ValidationFailed` naming the line and the field."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _invalid_problem(str(path), f"cannot be read: {error}") from None
    return _parse_problems(content, str(path))


def _parse_problems(content: bytes, name: str) -> tuple[CodingProblem, ...]:
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise _invalid_problem(name, "is not UTF-8 text") from None
    problems = tuple(_parse_problem(line, f"{name}, line {at}") for at, line in enumerate(lines, 1) if line.strip())
    if not problems:
        raise _invalid_problem(name, "holds no problem")
    return problems


def _parse_problem(line: str, where: str) -> CodingProblem:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise _invalid_problem(where, f"is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise _invalid_problem(where, "is not an object")
    for field in REQUIRED_FIELDS:
        if not isinstance(entry.get(field), str):
            raise _invalid_problem(where, f"lacks the text field `{field}`")
    wrong = entry.get("wrong_solution")
    return CodingProblem(
        **{field: entry[field] for field in REQUIRED_FIELDS}, wrong_solution=wrong if isinstance(wrong, str) else None
    )


def _invalid_problem(where: str, what: str) -> ValidationFailed:
    return ValidationFailed(f"{where} {what}", errors=[FieldError(field=where, message=what)])
