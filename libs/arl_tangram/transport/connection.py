"""Address and API key of the system: arguments, then environment variables, then the local state directory."""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from arl_wire.cells import MAX_CELL
from arl_wire.errors import FieldError, Unauthenticated, Unavailable, ValidationFailed

__all__ = [
    "CELL_VARIABLE",
    "ConnectionConfig",
    "is_up",
    "remote_gateway_url",
    "resolve_connection",
    "state_directory",
]

CELL_VARIABLE = "TANGRAM_CELL_HEADER"
"""Environment variable with the number of the cell to which a router forwards all requests."""


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionConfig:
    url: str
    api_key: str
    cell: int | None = None
    """Number of the cell to which a router forwards all requests. None: the router chooses."""

    def __repr__(self) -> str:
        return f"Connection(url={self.url!r})"


def state_directory() -> Path:
    """Return TANGRAM_DIR, else $XDG_STATE_HOME/tangram, else ~/.local/state/tangram."""
    if chosen := os.environ.get("TANGRAM_DIR"):
        return Path(chosen)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tangram"


def resolve_connection(
    url: str | None = None, api_key: str | None = None, *, cell: int | None = None, directory: Path | None = None
) -> ConnectionConfig:
    """Find address, key and cell. Raises `Unavailable`, `Unauthenticated` or `ValidationFailed` with what to do."""
    local = directory or state_directory()
    cell = _validate_cell(cell if cell is not None else os.environ.get(CELL_VARIABLE) or None)
    url = _validate_url(url or os.environ.get("TANGRAM_URL") or None)
    api_key = _validate_key(api_key or os.environ.get("TANGRAM_API_KEY") or None)
    here = _local_gateway_url(local)
    if api_key is None and url in (None, here):
        # The key of the local system must not be sent to any other address.
        api_key = _local_api_key(local)
    url = url or here
    if url is None:
        raise Unavailable(
            "No system is running here. Start one with `tangram up -d`, or set TANGRAM_URL and TANGRAM_API_KEY"
        )
    if api_key is None:
        if url != here:
            raise Unauthenticated(f"No API key for {url}. Set TANGRAM_API_KEY; the local key is not sent there")
        raise Unauthenticated(f"No API key was found. Set TANGRAM_API_KEY, or make {local / 'api_key'} readable")
    return ConnectionConfig(url, api_key, cell)


def remote_gateway_url(directory: Path) -> str | None:
    """Return TANGRAM_URL unless it is empty or names the system in `directory`. Raises `ValidationFailed`."""
    url = _validate_url(os.environ.get("TANGRAM_URL") or None)
    return url if url != _local_gateway_url(directory) else None


def _validate_url(url: str | None) -> str | None:
    """Reject an invalid address at once instead of retrying it."""
    if url is None:
        return None
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        message = f"{url!r} is not the address of a gateway. Example: http://127.0.0.1:8700"
        raise ValidationFailed(f"url: {message}", errors=[FieldError(field="url", message=message)])
    return url.strip().rstrip("/")


def _validate_cell(cell: int | str | None) -> int | None:
    text = str(cell)
    if cell is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_CELL)) and 1 <= int(text) <= MAX_CELL):
        message = f"{text[:20]!r} is not the number of a cell, which is from 1 to {MAX_CELL} ({CELL_VARIABLE})"
        raise ValidationFailed(f"cell: {message}", errors=[FieldError(field="cell", message=message)])
    return int(text)


def _validate_key(key: str | None) -> str | None:
    """Strip and check a key. Messages never contain the key, and the final line break of a file is not part of it."""
    if key is None:
        return None
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise Unauthenticated("The API key is empty or has invalid characters. Set TANGRAM_API_KEY again")
    return key


def is_up(directory: Path) -> bool:
    """Return True if a supervisor has locked the state directory. A file may be stale; a lock ends with its process."""
    try:
        with (directory / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _local_gateway_url(directory: Path) -> str | None:
    """Return None while the system is down. Another process may listen on its old port and must not receive the key."""
    if not is_up(directory):
        return None
    try:
        return str(json.loads((directory / "endpoints.json").read_text())["gateway"])
    except (OSError, ValueError, KeyError):
        return None


def _local_api_key(directory: Path) -> str | None:
    try:
        return (directory / "api_key").read_text().strip() or None
    except OSError:
        return None
