"""The last command to an engine that cannot report its state, in a file that outlives the worker."""

import json
from collections.abc import Callable
from pathlib import Path

from arl_store.files import replace_file

__all__ = ["EngineStateFile"]


class EngineStateFile:
    """The persisted sleep state of one engine. An incomplete file means that the state is unknown.

    The file is missing before the first command, or after it was deleted. The engine then counts as awake, unless the
    caller put it to sleep. Its memory is counted. If that is wrong, the engine exits on its first request, which is an
    error and never a score. A first start cannot be distinguished from a lost file. If a missing file meant an unknown
    state, no engine could be used before its first restart.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, process_seed: str | None, *, sleeps: bool | None) -> None:
        """Save the state. `sleeps` is None during a command; `process_seed` is None if unknown. Raises `OSError`."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not durable: a power failure ends the engine too.
        replace_file(self._path, json.dumps({"engine": process_seed, "sleeps": sleeps}), durable=False)

    def is_asleep(self, identify_process: Callable[[], str | None], *, asleep: bool | None = False) -> bool | None:
        """Return True if the engine sleeps and None if its state is unknown.

        If the file names another process than the current one, the engine has restarted and is awake.

        Args:
            identify_process: Returns the current process. Called only if the file requires a comparison.
            asleep: True if the caller put the engine to sleep. The caller would know if the engine had ended, so an
                unnamed process is the same one. None if the engine did not respond to the last command.
        """
        try:
            said = json.loads(self._path.read_text())
            then, sleeps = said["engine"], said["sleeps"]
        except FileNotFoundError:
            return asleep
        except (OSError, ValueError, LookupError, TypeError):
            return None
        if sleeps is False:
            return False
        now = identify_process() if then is not None else None
        if now is not None and then != now:
            return False
        return True if sleeps is True and (now is not None or asleep) else None
