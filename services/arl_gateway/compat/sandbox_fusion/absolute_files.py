"""Files of a SandboxFusion request with absolute paths.

An action's own files are relative to the working directory. A program inside the environment copies the others, so the
environment's permissions apply: `/tmp/in.txt` works, and `/etc/passwd` does not.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from arl_core.domain.states import ActionOutcome
from arl_wire.actions.action import Action
from arl_wire.errors import FieldError, ValidationFailed

__all__ = [
    "COLLECT_TIMEOUT_S",
    "PLACE_TIMEOUT_S",
    "collect_action",
    "collected_files",
    "is_absolute",
    "missing_files_note",
    "place_action",
]

PLACE_TIMEOUT_S = 10
COLLECT_TIMEOUT_S = 5
"""Time limit in seconds. It is short because processes that the program left can block the action, for example with a
FIFO in place of a file."""
_DIRECTORY = ".tangram-files"
_MAX_PATH = 1024
_PLACE = f"""n=0; for path; do
mkdir -p -- "${{path%/*}}/" && cat < {_DIRECTORY}/$n > "$path" || {{ echo "cannot write '$path'" >&2; exit 1; }}
n=$((n + 1)); done; rm -rf {_DIRECTORY}"""
_COLLECT = """directory=$1; shift; mkdir "$directory" || exit 1
n=0; for path; do if [ -f "$path" ]; then cat < "$path" > "$directory/$n" || rm -f "$directory/$n"; fi
n=$((n + 1)); done; exit 0"""


def is_absolute(path: str) -> bool:
    """Return True if the path does not start in the working directory."""
    return path.startswith("/")


def place_action(files: Mapping[str, str]) -> dict[str, Any]:
    """Return fields of an action that writes files. `files` maps absolute paths to contents in base64.

    Raises ValidationFailed for a path that no file can have.
    """
    _check_paths("files", files)
    staged = {f"{_DIRECTORY}/{at}": content for at, content in enumerate(files.values())}
    return {"argv": ["sh", "-c", _PLACE, "sh", *files], "files": staged, "timeout_s": PLACE_TIMEOUT_S}


def collect_action(paths: list[str]) -> dict[str, Any]:
    """Return fields of an action that reads files with absolute paths. Missing files are left out.

    The name of the directory with the copies is random, so that the program cannot create files in it in advance.
    Raises ValidationFailed for a path that no file can have.
    """
    _check_paths("fetch_files", paths)
    directory = f"{_DIRECTORY}-{uuid4().hex}"
    staged = [f"{directory}/{at}" for at in range(len(paths))]
    return {
        "argv": ["sh", "-c", _COLLECT, "sh", directory, *paths],
        "fetch": staged,
        "timeout_s": COLLECT_TIMEOUT_S,
    }


def collected_files(action: Action | None, paths: list[str]) -> dict[str, str]:
    """Return the contents in base64 that the settled `collect_action` of these paths found, by path.

    The result is empty if the action failed: the last file may be incomplete.
    """
    if action is None or action.outcome is not ActionOutcome.OK or action.result is None:
        return {}
    # The directory is not known here, because a repeated request gets the action of the first one.
    contents = {staged.rpartition("/")[2]: content for staged, content in action.result.files.items()}
    return {path: contents[str(at)] for at, path in enumerate(paths) if str(at) in contents}


def missing_files_note(action: Action | None) -> str:
    """Return the sentence that says why files with absolute paths are missing; empty if `collect_action` succeeded."""
    if action is None or action.outcome is ActionOutcome.OK:
        return ""
    if action.outcome is ActionOutcome.USER_TIMEOUT:
        why = f"reading them took longer than {COLLECT_TIMEOUT_S} s"
    else:
        why = ": ".join(filter(None, (str(action.outcome), action.message or action.reason)))
    return f"files with absolute paths were not returned: {why}"


def _check_paths(field: str, paths: Iterable[str]) -> None:
    for path in paths:
        if "\0" in path or path.endswith("/") or len(path) > _MAX_PATH:
            message = f"must be the path of a file, without NUL and with at most {_MAX_PATH} characters"
            raise ValidationFailed(f"`{field}`: {message}", errors=[FieldError(field=field, message=message)])
