"""The database of one machine: the schema brought up to date, a role for each service, the user's key."""

import signal

from arl_local.postgres.embedded_postgres import EmbeddedPostgres, create_database
from arl_local.process_plan import SERVICES
from arl_local.state_dir import StateDir
from arl_local.supervisor import ProcessSpec
from arl_store.migrate import can_create_roles, ensure_api_key, role_url, upgrade

__all__ = ["ensure_embedded_database", "postgres_spec", "provision_database"]

_DATABASE = "tangram"
_PROJECT = "default"
_SHUTDOWN_TIMEOUT_S = 60.0
_PROBE_INTERVAL_S = 15.0
"""Each look is a new connection; its end is noticed at once."""


def postgres_spec(server: EmbeddedPostgres) -> ProcessSpec:
    """The embedded server as a process: the last to stop, by its fast shutdown."""
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


async def provision_database(owner_url: str, state: StateDir, *, take_over: bool = False) -> dict[str, str]:
    """Make the database ready for this version; returns the URL that each service connects with.

    Raises where it belongs to another state directory, unless it is to be taken over.
    """
    passwords = {service: state.secret("passwords", service) for service in SERVICES}
    await upgrade(owner_url, passwords, take_over=take_over)
    await ensure_api_key(owner_url, _PROJECT, state.api_key())
    if not await can_create_roles(owner_url):
        return dict.fromkeys(SERVICES, owner_url)
    return {service: role_url(owner_url, service, passwords[service]) for service in SERVICES}


async def ensure_embedded_database(server: EmbeddedPostgres) -> str:
    """The owner's URL of our database in the embedded server; it is made if it isn't there."""
    await create_database(server.owner_url("postgres"), _DATABASE)
    return server.owner_url(_DATABASE)
