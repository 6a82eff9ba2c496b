"""Where the system is and who we are: arguments, then environment variables, then the local state directory."""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from arl_wire.errors import Unauthenticated, Unavailable

__all__ = ["Connection", "is_up", "resolve", "state_directory"]


@dataclass(frozen=True, slots=True, repr=False)
class Connection:
    url: str
    api_key: str

    def __repr__(self) -> str:
        return f"Connection(url={self.url!r})"


def state_directory() -> Path:
    """TANGRAM_DIR, else $XDG_STATE_HOME/tangram, else ~/.local/state/tangram."""
    if chosen := os.environ.get("TANGRAM_DIR"):
        return Path(chosen)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tangram"


def resolve(url: str | None = None, api_key: str | None = None, *, directory: Path | None = None) -> Connection:
    """Raises `Unavailable` or `Unauthenticated` with what to do."""
    local = directory or state_directory()
    url = url or os.environ.get("TANGRAM_URL")
    api_key = api_key or os.environ.get("TANGRAM_API_KEY")
    here = _endpoint(local)
    if api_key is None and url in (None, here):
        # The key of this directory's system is for no other address.
        api_key = _key(local)
    url = url or here
    if url is None:
        raise Unavailable("no system found: run `tangram up`, or set TANGRAM_URL and TANGRAM_API_KEY")
    if api_key is None:
        raise Unauthenticated(f"no API key: set TANGRAM_API_KEY, or make {local / 'api_key'} readable")
    return Connection(url.rstrip("/"), api_key)


def is_up(directory: Path) -> bool:
    """Whether a supervisor holds the state directory's lock. A file may be old; a lock ends with its process."""
    try:
        with (directory / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _endpoint(directory: Path) -> str | None:
    """None while it is down: on its old port somebody else may listen, for whom its key is not meant."""
    if not is_up(directory):
        return None
    try:
        return str(json.loads((directory / "endpoints.json").read_text())["gateway"])
    except (OSError, ValueError, KeyError):
        return None


def _key(directory: Path) -> str | None:
    try:
        return (directory / "api_key").read_text().strip() or None
    except OSError:
        return None
