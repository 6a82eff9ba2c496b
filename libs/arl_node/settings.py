import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, StringConstraints, model_validator

from arl_kit.service_tokens import TokenIssuer, joined_caller, node_audience
from arl_kit.settings import ServiceSettings

__all__ = ["ManagerSettings", "UpstreamKey", "UpstreamUrl"]


def _check_url(url: str) -> str:
    try:
        port, host = urlsplit(url).port, urlsplit(url).hostname
    except ValueError as error:
        raise ValueError(f"is not a valid address: {error}") from None
    if not host or port == 0:
        raise ValueError("is not a valid address: the host is missing, or the port is 0")
    return url


def _check_header_value(key: SecretStr) -> SecretStr:
    """Return the key without surrounding whitespace, such as the last newline of a file."""
    stripped = key.get_secret_value().strip()
    if not stripped or not (stripped.isascii() and stripped.isprintable()):
        raise ValueError("must be printable ASCII and not empty")
    return SecretStr(stripped)


UpstreamUrl = Annotated[
    str,
    StringConstraints(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", max_length=512),
    AfterValidator(_check_url),
]
"""HTTP URL with an optional path, without credentials, query or fragment."""
UpstreamKey = Annotated[SecretStr, AfterValidator(_check_header_value)]
"""Key that is never shown and is valid in a header."""

WILDCARD_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104 - not addresses that a caller can reach


class ManagerSettings(ServiceSettings):
    """The settings of every node manager."""

    credential_id: str | None = Field(
        default=None,
        pattern="^[0-9a-z]{1,64}$",
        description="Id of the credentials of a node that joined. Absent: the node has the secret of its kind",
    )
    scheduler_url: str = Field(description="Base URL of the scheduler, which is notified of freed resources")
    node_name: str = Field(
        default_factory=socket.gethostname, min_length=1, max_length=128, description="Name of the node; it is unique"
    )
    advertise_url: str | None = Field(
        default=None, description="Base URL at which the scheduler reaches this manager. Absent: its host and port"
    )
    node_ttl_s: float = Field(
        default=10.0, gt=0, description="Seconds for which the lease of the node lasts without a heartbeat"
    )
    beat_s: float = Field(default=2.0, gt=0, description="Seconds between heartbeats")
    poll_busy_s: float = Field(default=1.0, gt=0, le=1.0, description="Seconds between polls while the node has work")
    poll_idle_s: float = Field(default=8.0, gt=0, description="Maximum seconds between polls without work")

    ends_at: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Time at which this machine ends the node, in seconds since 1970 by its own clock. No action starts"
        " whose `timeout_s` does not end before. Absent: the node has no known end",
    )
    spool_dir: Path | None = Field(
        default=None,
        description="Directory in which this node stores results that Postgres does not accept at once. Absent:"
        " `$XDG_STATE_HOME/tangram/spool`, else `~/.local/state/tangram/spool`",
    )
    spool_mib: int = Field(
        default=256, ge=1, le=1 << 20, description="Maximum size of the stored results of this node in MiB"
    )

    @model_validator(mode="after")
    def _check_advertise_url(self) -> Self:
        if self.host in WILDCARD_ADDRESSES and self.advertise_url is None:
            raise ValueError(
                f"TANGRAM_HOST={self.host} needs TANGRAM_ADVERTISE_URL, the node's address for other services"
            )
        return self

    def token_issuer(self, caller: str) -> TokenIssuer:
        """Return the issuer of this manager's tokens; `caller` is its kind."""
        return super().token_issuer(caller if self.credential_id is None else joined_caller(caller, self.credential_id))

    @property
    def ends_in_s(self) -> float | None:
        """Return the seconds until the machine ends the node; None if it has no known end."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.time())

    @property
    def audience(self) -> str:
        """Return the name under which other services address this manager in their tokens."""
        return node_audience(self.node_name, self.credential_id)

    @property
    def url(self) -> str:
        """Return the address of this manager for other services."""
        return self.advertise_url or f"http://{self.host}:{self.port}"

    @property
    def spool_path(self) -> Path:
        """Return the directory of this node's results. Systems on one machine may share the default `spool_dir`."""
        name = f"{quote(self.node_name, safe='')[:64]}-{hashlib.sha256(self.node_name.encode()).hexdigest()[:8]}"
        return self.spool_dir / name if self.spool_dir else _default_spool_dir() / f"{name}-{self._database_digest}"

    @property
    def _database_digest(self) -> str:
        url = urlsplit(self.database_url.get_secret_value())
        address = f"{url.netloc.rpartition('@')[2]}{url.path}?{','.join(parse_qs(url.query).get('host', []))}"
        return hashlib.sha256(address.encode()).hexdigest()[:16]


def _default_spool_dir() -> Path:
    try:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home directory
        home = "/var/lib"
    return Path(home) / "tangram" / "spool"
