"""Files of a SandboxFusion request with absolute paths.

An action's own files are relative to the working directory. A program inside the environment copies the others, so the
environment's permissions apply: `/tmp/in.txt` works, and `/etc/passwd` does not.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from arl_wire.actions.action import Action
from arl_wire.errors import FieldError, ValidationFailed

__all__ = ["collect_action", "collected_files", "is_absolute", "place_action"]

_DIRECTORY = ".tangram-files"
_MAX_PATH = 1024
_COPY_TIMEOUT_S = 60
_PLACE = f"""n=0; for path; do
mkdir -p -- "${{path%/*}}/" && cat < {_DIRECTORY}/$n > "$path" || {{ echo "cannot write '$path'" >&2; exit 1; }}
n=$((n + 1)); done; rm -rf {_DIRECTORY}"""
_COLLECT = f"""rm -rf {_DIRECTORY}; mkdir {_DIRECTORY} || exit 1
n=0; for path; do [ -f "$path" ] && cat < "$path" > {_DIRECTORY}/$n; n=$((n + 1)); done; exit 0"""


def is_absolute(path: str) -> bool:
    """Return True if the path does not start in the working directory."""
    return path.startswith("/")


def place_action(files: Mapping[str, str]) -> dict[str, Any]:
    """Return fields of an action that writes files. `files` maps absolute paths to contents in base64.

    Raises ValidationFailed for a path that no file can have.
    """
    _check_paths("files", files)
    staged = {_staged_path(at): content for at, content in enumerate(files.values())}
    return {"argv": ["sh", "-c", _PLACE, "sh", *files], "files": staged, "timeout_s": _COPY_TIMEOUT_S}


def collect_action(paths: list[str]) -> dict[str, Any]:
    """Return fields of an action that reads files with absolute paths. Missing files are left out.

    Raises ValidationFailed for a path that no file can have.
    """
    _check_paths("fetch_files", paths)
    staged = [_staged_path(at) for at in range(len(paths))]
    return {"argv": ["sh", "-c", _COLLECT, "sh", *paths], "fetch": staged, "timeout_s": _COPY_TIMEOUT_S}


def collected_files(action: Action, paths: list[str]) -> dict[str, str]:
    """Return the contents in base64 that the settled `collect_action` of these paths found, by path."""
    found = action.result.files if action.result is not None else {}
    return {path: found[staged] for at, path in enumerate(paths) if (staged := _staged_path(at)) in found}


def _staged_path(number: int) -> str:
    return f"{_DIRECTORY}/{number}"


def _check_paths(field: str, paths: Iterable[str]) -> None:
    for path in paths:
        if "\0" in path or path.endswith("/") or len(path) > _MAX_PATH:
            message = f"must be the path of a file, without NUL and with at most {_MAX_PATH} characters"
            raise ValidationFailed(f"`{field}`: {message}", errors=[FieldError(field=field, message=message)])
