"""A probe: a small program and what it prints and returns in a plain container."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import dedent

__all__ = ["Probe", "bash", "c_program", "other_language", "python", "sh"]

_SCRIPT = "probe.sh"
_MODULE = "main.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A program that works in a plain container, run by an unprivileged user without a network."""

    name: str
    argv: tuple[str, ...]
    files: Mapping[str, str]
    """Files that are written to the working directory before the start, by name."""
    output: str
    """All that the program prints to stdout in a plain container."""
    exit_code: int = 0
    needs: tuple[str, ...] = ()
    """Commands that the program uses. The probe is skipped if one is missing inside the sandbox."""
    imports: tuple[str, ...] = ()
    """Python modules besides the standard library that `python3` must be able to import."""
    machine: str | None = None
    """Machine whose numbers of system calls the program uses. None: the program runs on all machines."""
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str | None:
        """The text of the program if it is a Python module, for a start as `source`."""
        return self.files.get(_MODULE) if self.argv == ("python3", _MODULE) else None


def python(name: str, text: str, output: str, **changes: object) -> Probe:
    """Return a probe that runs a Python file."""
    return _probe(name, ("python3", _MODULE), {_MODULE: dedent(text)}, output, ("python3",), changes)


def sh(name: str, text: str, output: str, **changes: object) -> Probe:
    """Return a probe that runs a script in the system's `sh`."""
    return _probe(name, ("sh", _SCRIPT), {_SCRIPT: dedent(text)}, output, ("sh",), changes)


def bash(name: str, text: str, output: str, **changes: object) -> Probe:
    """Return a probe that runs a script in bash."""
    return _probe(name, ("bash", _SCRIPT), {_SCRIPT: dedent(text)}, output, ("bash",), changes)


def c_program(name: str, text: str, output: str, *, flags: str = "", **changes: object) -> Probe:
    """Return a probe that compiles and runs a C program."""
    script = f"cc -w -o main main.c {flags} && exec ./main\n"
    files = {"main.c": dedent(text), _SCRIPT: script}
    return _probe(name, ("sh", _SCRIPT), files, output, ("cc",), changes)


def other_language(name: str, file: str, text: str, command: str, output: str, **changes: object) -> Probe:
    """Return a probe that writes a program of another language to `file` and runs it by `command`."""
    program = command.split(maxsplit=1)[0]
    files = {file: dedent(text), _SCRIPT: f"{command}\n"}
    return _probe(name, ("sh", _SCRIPT), files, output, (program,), changes)


def _probe(
    name: str,
    argv: tuple[str, ...],
    files: Mapping[str, str],
    output: str,
    needs: tuple[str, ...],
    changes: Mapping[str, object],
) -> Probe:
    others = dict(changes)
    needs += tuple(others.pop("needs", ()))  # type: ignore[call-overload]
    return Probe(name=name, argv=argv, files=files, output=dedent(output), needs=needs, **others)  # type: ignore[arg-type]
