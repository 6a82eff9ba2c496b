"""The embedded Postgres of a cluster: settings, and the variables of the relay through which nodes reach it."""

import json
from collections.abc import Mapping
from urllib.parse import urlencode

from arl_local.database import EMBEDDED_DATABASE
from arl_local.postgres.certificates import issue_server_certificate
from arl_local.postgres.embedded_postgres import EmbeddedPostgres
from arl_local.process_plan import DATABASE_RELAY, LocalOptions
from arl_local.state_dir import StateDir

__all__ = ["SHARED_SETTINGS", "authority_certificate", "relay_variables", "shared_url"]

SHARED_SETTINGS: Mapping[str, str] = {"max_connections": "300"}
"""Each node has up to ten connections."""
_TLS_DIRECTORY = "tls"


def relay_variables(state: StateDir, options: LocalOptions) -> dict[str, str] | None:
    """Return the variables of the relay, or None if no other machine connects to an embedded Postgres."""
    if options.listen is None or options.database_url is not None:
        return None
    files = issue_server_certificate(state.path / _TLS_DIRECTORY, options.listen)
    return {
        "TANGRAM_NETWORKS": json.dumps(options.networks),
        "TANGRAM_DATABASE": EMBEDDED_DATABASE,
        "TANGRAM_SOCKET": str(EmbeddedPostgres(state.path).socket),
        "TANGRAM_CERTIFICATE_PEM": files.certificate.read_text(),
        "TANGRAM_KEY_PEM": files.key.read_text(),
    }


def shared_url(state: StateDir) -> str | None:
    """Return the URL of the embedded Postgres for other machines, without a role. None: it serves this machine only."""
    if (address := state.endpoints().get(DATABASE_RELAY)) is None:
        return None
    query = urlencode({"sslmode": "verify-full", "sslnegotiation": "direct"})
    return f"{address}/{EMBEDDED_DATABASE}?{query}"


def authority_certificate(state: StateDir) -> str:
    """Return the certificate that nodes trust for the embedded Postgres."""
    return (state.path / _TLS_DIRECTORY / "ca.pem").read_text()
