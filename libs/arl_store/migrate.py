"""Migration of a database to this version: tables by alembic, then roles, grants and the trigger."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from arl_core.domain.states import ServiceRole
from arl_store.guards import edge_trigger_statements, grant_statements, policies, role_name
from arl_store.installation_repository import claim_database
from arl_store.logins import NodeLogin, ensure_node_login, ensure_role
from arl_store.tx import engine_for

__all__ = ["MINIMUM_SERVER", "can_create_roles", "ensure_api_key", "upgrade"]

MINIMUM_SERVER = 150000
PARTITIONS_AHEAD = 7

log = logging.getLogger(__name__)

ACQUIRE_MIGRATION_LOCK = text("select pg_advisory_xact_lock(hashtext('tangram.migrate'))")
SET_LOCK_TIMEOUT = text("set local lock_timeout = '2s'")
"""Limit for table locks. A statement that waits for a table blocks all later ones, and a backup locks all tables."""
LOCK_NOT_AVAILABLE = "55P03"
MAX_LOCK_ATTEMPTS = 12
LOCK_PAUSE_S = 3.0
SELECT_SERVER = text("""
    select current_setting('server_version_num')::int as version,
           current_database() as database, current_setting('server_encoding') as encoding,
           (select rolsuper or rolcreaterole from pg_roles where rolname = current_user) as may_create_roles
""")
CAN_CREATE_ROLES = text("select rolsuper or rolcreaterole from pg_roles where rolname = current_user")
ENSURE_PARTITIONS = text("select ensure_partitions((now() at time zone 'utc')::date - 1, :days)")
ASSIGN_NODES = text("""
    with owned as (
        select n.id, coalesce(r.role, :database || '_' || n.kind) as role, r.credential_id
          from nodes as n
          left join node_roles as r on r.node_name = n.name and r.kind = n.kind
    )
    update nodes as n
       set db_role = owned.role, credential_id = owned.credential_id
      from owned
     where owned.id = n.id
       and (n.db_role <> owned.role or n.credential_id is distinct from owned.credential_id)
""")
SELECT_POLICIES = text("""
    select tablename::text as table_name, policyname::text as name
      from pg_policies
     where schemaname = current_schema()
""")
INSERT_PROJECT = text("insert into projects (name) values (:name) on conflict (name) do nothing")
INSERT_KEY = text("""
    insert into api_keys (project_id, prefix, hash, scopes)
    select id, :prefix, :hash, '{actions:write,admin:*}' from projects where name = :project
        on conflict (hash) do nothing
""")


async def upgrade(
    owner_url: str, passwords: Mapping[str, str], *, nodes: Sequence[NodeLogin] = (), take_over: bool = False
) -> None:
    """Migrate the database in one transaction under a lock. Repeated and concurrent calls are safe.

    `passwords` maps each service's name to the password of its role. Each of `nodes` gets its own role, a member of
    its kind's role. A kind without a password has a role without a login. Without the right to create roles, all
    services use the owner, and the trigger checks transitions but not writers. Raises `ForeignInstallation` if the
    roles have other passwords and `take_over` is False.
    """
    engine = engine_for(owner_url)
    try:
        for tries_left in reversed(range(MAX_LOCK_ATTEMPTS)):
            try:
                async with engine.begin() as connection:
                    await connection.execute(ACQUIRE_MIGRATION_LOCK)
                    await connection.execute(SET_LOCK_TIMEOUT)
                    await _upgrade_locked(connection, passwords, nodes, take_over=take_over)
                return
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                    raise
                if not tries_left:
                    raise RuntimeError(
                        "another session, such as a backup, has locked the tables; try again later"
                    ) from None
            log.warning("another session has locked the tables; trying again")
            await asyncio.sleep(LOCK_PAUSE_S)
    finally:
        await engine.dispose()


async def ensure_api_key(owner_url: str, project: str, key: str) -> None:
    """Make `key` valid for `project`. Creates the project if it is missing."""
    engine = engine_for(owner_url)
    try:
        async with engine.begin() as connection:
            await connection.execute(INSERT_PROJECT, {"name": project})
            await connection.execute(
                INSERT_KEY, {"prefix": key[:8], "hash": sha256(key.encode()).digest(), "project": project}
            )
    finally:
        await engine.dispose()


async def can_create_roles(owner_url: str) -> bool:
    """Return True if the owner may create a role for each service."""
    engine = engine_for(owner_url)
    try:
        async with engine.connect() as connection:
            return bool((await connection.execute(CAN_CREATE_ROLES)).scalar())
    finally:
        await engine.dispose()


async def _upgrade_locked(
    connection: AsyncConnection, passwords: Mapping[str, str], nodes: Sequence[NodeLogin], *, take_over: bool
) -> None:
    server = (await connection.execute(SELECT_SERVER)).one()
    if server.version < MINIMUM_SERVER:
        raise RuntimeError(f"PostgreSQL 15 or newer is required; this server has version {server.version // 10000}")
    if server.encoding != "UTF8":
        raise RuntimeError(f"the database {server.database} has the encoding {server.encoding}; it must be UTF8")
    await connection.run_sync(_run_alembic)
    await claim_database(connection, passwords, take_over=take_over)
    if server.may_create_roles:
        await _ensure_roles(connection, server.database, passwords)
        await _ensure_node_roles(connection, server.database, nodes)
    else:
        log.warning(
            "the owner may not create roles: all services use the owner, and the database cannot check which service"
            " writes"
        )
    for statement in edge_trigger_statements(server.database, single_role=not server.may_create_roles):
        await connection.exec_driver_sql(statement)
    await connection.execute(ENSURE_PARTITIONS, {"days": PARTITIONS_AHEAD + 1})


async def _ensure_roles(connection: AsyncConnection, database: str, passwords: Mapping[str, str]) -> None:
    for role in ServiceRole:
        await ensure_role(connection, role_name(database, role), passwords.get(role.value))
        for statement in grant_statements(database, role):
            await connection.exec_driver_sql(statement)


async def _ensure_node_roles(connection: AsyncConnection, database: str, nodes: Sequence[NodeLogin]) -> None:
    """Create the nodes' roles and the policies, and make each row of `nodes` the property of its role."""
    for node in nodes:
        await ensure_node_login(connection, database, node)
    await connection.execute(ASSIGN_NODES, {"database": database})
    wanted = policies(database)
    known = {(row.table_name, row.name) for row in await connection.execute(SELECT_POLICIES)}
    for table, name in sorted(known - wanted.keys()):
        await connection.exec_driver_sql(f'drop policy "{name}" on "{table}"')
    for policy in sorted(wanted.keys() - known):
        await connection.exec_driver_sql(wanted[policy])


def _run_alembic(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(_migrations_directory()))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise RuntimeError(
            f"the database belongs to another, probably newer, version of ARL-Tangram: {error}"
        ) from None


def _migrations_directory() -> Path:
    """Return the migrations' directory: next to this module in an installed wheel, at the root of a checkout."""
    here = Path(__file__).parent
    installed = here / "migrations"
    return installed if installed.is_dir() else here.parents[1] / "migrations"
