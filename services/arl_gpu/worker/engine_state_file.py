"""What an engine that can't be asked was told last: in a file, so that it outlives whoever told it."""

import json
from collections.abc import Callable
from pathlib import Path

from arl_store.files import replace_file

__all__ = ["EngineStateFile"]


class EngineStateFile:
    """Of one engine. A file that is not whole says nothing.

    Without a file, as before its first order or after somebody deleted that, it is awake, unless whoever asks put it to
    sleep. So its bytes count, and if that is wrong it ends where it is used, which is an error and never a score. Taken
    for unknown, none could be used before its first restart, since nothing else tells a first start from a lost file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, process_seed: str | None, *, sleeps: bool | None) -> None:
        """`engine`: which process it is, where that is known. `sleeps`: None while it is told to. Raises `OSError`."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A power failure ends the engine, too.
        replace_file(self._path, json.dumps({"engine": process_seed, "sleeps": sleeps}), durable=False)

    def is_asleep(self, identify_process: Callable[[], str | None], *, asleep: bool | None = False) -> bool | None:
        """Whether it sleeps; None where nobody knows. Another process than the one it names has begun since, awake.

        `which` it is now is asked only where that says something. `asleep`: it was put to sleep by whoever asks, who
        would know of its end; so it is that process where no other is named. None where it did not answer to its last
        order.
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
