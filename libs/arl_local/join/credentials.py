"""The credentials of a joined node: what the control machine encrypts and the node stores."""

import json
from pathlib import Path
from typing import Literal, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict

from arl_local.credentials import NodeIdentity
from arl_store.files import replace_file

__all__ = ["DamagedCredentials", "JoinedNode"]

_FILE, _AUTHORITY_FILE = "node.json", "database-ca.pem"


class DamagedCredentials(RuntimeError):
    """The file with the credentials cannot be read."""


class JoinedNode(BaseModel):
    """A node with its credentials. It contains secrets: the file has mode 0600."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    kind: Literal["cpu", "gpu", "api"]
    pool: str
    token_id: str
    """Id of the token that the node used."""
    version: str
    """Version of the control plane."""
    gateway_url: str
    scheduler_url: str
    database_url: str
    """URL with the node's role, without the path of the certificate."""
    ca_certificate: str | None = None
    """Certificate (PEM) of the authority of Postgres. None: the connection is not encrypted, or a public one signs."""
    secrets: dict[str, str]

    @property
    def identity(self) -> NodeIdentity:
        """Return the kind and the name."""
        return NodeIdentity(self.kind, self.name)

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Return the node that joined in this state directory, or None. Raises `DamagedCredentials`."""
        try:
            return cls.model_validate_json((directory / _FILE).read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise DamagedCredentials(
                f"{directory / _FILE} is damaged. Remove it, and join again with a new token: tangram nodes join-token"
                " create"
            ) from None

    def store(self, directory: Path) -> None:
        """Write the credentials, readable by their owner only."""
        if self.ca_certificate is not None:
            replace_file(directory / _AUTHORITY_FILE, self.ca_certificate)
        # Last: its presence shows that the node has joined.
        replace_file(directory / _FILE, json.dumps(self.model_dump(), indent=1) + "\n")

    def database_url_in(self, directory: Path) -> str:
        """Return the URL for this machine, on which the certificate is in the state directory."""
        if self.ca_certificate is None:
            return self.database_url
        parts = urlsplit(self.database_url)
        query = dict(parse_qsl(parts.query)) | {"sslrootcert": str(directory / _AUTHORITY_FILE)}
        return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
