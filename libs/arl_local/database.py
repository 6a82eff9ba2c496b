"""The database of one machine: schema migration, a role for each service, and the user's key."""

import signal
from collections.abc import Mapping

from arl_local.credentials import NODE_KINDS, NodeIdentity
from arl_local.postgres.embedded_postgres import EmbeddedPostgres, create_database
from arl_local.process_plan import SERVICES
from arl_local.state_dir import StateDir
from arl_local.supervisor import ProcessSpec
from arl_store.files import replace_file
from arl_store.logins import NodeLogin, node_role_url, role_url
from arl_store.migrate import can_create_roles, ensure_api_key, upgrade

__all__ = ["EMBEDDED_DATABASE", "ensure_embedded_database", "postgres_spec", "provision_database"]

DATABASE_ROLES_FILE = "database_roles"
"""File in the state directory, for `tangram doctor`: `separate` roles, or the `owner` for all services."""
EMBEDDED_DATABASE = "tangram"
_PROJECT = "default"
_SHUTDOWN_TIMEOUT_S = 60.0
_PROBE_INTERVAL_S = 15.0
"""Seconds between readiness checks. Each check opens a connection; the end of the process is noticed at once."""


def postgres_spec(server: EmbeddedPostgres) -> ProcessSpec:
    """Return the process of the embedded server. It stops last, by its fast shutdown."""
    return ProcessSpec(
        name="postgres",
        argv=tuple(server.command()),
        env=server.env,
        account=server.account,
        ready=server.is_ready,
        probe_interval_s=_PROBE_INTERVAL_S,
        before_start=server.before_start,
        stop_order=9,
        stop_signal=signal.SIGINT,
        stop_timeout_s=_SHUTDOWN_TIMEOUT_S,
    )


async def provision_database(
    owner_url: str, state: StateDir, nodes: Mapping[str, NodeIdentity], *, take_over: bool = False
) -> dict[str, str]:
    """Migrate the database to this version. Return the connection URL of each service, and of each key of `nodes`.

    Raises `ForeignInstallation` if the database belongs to another state directory and `take_over` is False.
    """
    passwords = {service: state.secret("passwords", service) for service in SERVICES if service not in NODE_KINDS}
    logins = {
        name: NodeLogin(node.kind, node.name, state.secret("passwords", node.file_name)) for name, node in nodes.items()
    }
    await upgrade(owner_url, passwords, nodes=list(logins.values()), take_over=take_over)
    await ensure_api_key(owner_url, _PROJECT, state.api_key())
    has_roles = await can_create_roles(owner_url)
    replace_file(state.path / DATABASE_ROLES_FILE, "separate" if has_roles else "owner")
    if not has_roles:
        return dict.fromkeys((*passwords, *logins), owner_url)
    return {
        **{service: role_url(owner_url, service, password) for service, password in passwords.items()},
        **{name: node_role_url(owner_url, login) for name, login in logins.items()},
    }


async def ensure_embedded_database(server: EmbeddedPostgres) -> str:
    """Create our database in the embedded server if it is missing. Return the owner's URL."""
    await create_database(server.owner_url("postgres"), EMBEDDED_DATABASE)
    return server.owner_url(EMBEDDED_DATABASE)
