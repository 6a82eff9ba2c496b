"""Logins of services and nodes: roles with passwords, and the URLs with which they connect."""

import hmac
import secrets
from base64 import b64encode
from dataclasses import dataclass
from hashlib import pbkdf2_hmac, sha256
from urllib.parse import quote, urlsplit, urlunsplit

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from arl_core.domain.states import ServiceRole
from arl_store.guards import node_role_name, role_name

__all__ = ["NodeLogin", "database_of", "ensure_node_login", "ensure_role", "node_role_url", "role_url"]

SCRAM_ITERATIONS = 4096
MAX_ROLE_BYTES = 63
"""Postgres cuts longer names, so that two roles could become one."""

SELECT_ROLE = text("select 1 from pg_roles where rolname = :name")
BIND_ROLE = text("""
    insert into node_roles (role, kind, node_name, credential_id, pool)
    values (:role, :kind, :node_name, :credential_id, :pool)
        on conflict (role) do update
       set kind = excluded.kind, node_name = excluded.node_name, credential_id = excluded.credential_id,
           pool = excluded.pool
""")


@dataclass(frozen=True, slots=True)
class NodeLogin:
    """The database login of one node."""

    kind: str
    node_name: str
    password: str
    credential_id: str | None = None
    """Name in the service tokens of a node that joined; None for a node with the token of its kind."""
    pool: str = "default"

    def role(self, database: str) -> str:
        """Return the name of the node's role."""
        return node_role_name(database, ServiceRole(self.kind), self.node_name)


def role_url(owner_url: str, service: str, password: str) -> str:
    """Return the URL with which `service` connects under its role."""
    return _login_url(owner_url, role_name(database_of(owner_url), ServiceRole(service)), password)


def node_role_url(owner_url: str, node: NodeLogin) -> str:
    """Return the URL with which a node connects under its own role."""
    return _login_url(owner_url, node.role(database_of(owner_url)), node.password)


async def ensure_role(connection: AsyncConnection, name: str, password: str | None) -> None:
    """Create the role or change its password. Without a password it cannot log in."""
    if len(name.encode()) > MAX_ROLE_BYTES:
        raise RuntimeError(f"the role name {name} is too long for Postgres; use a database with a shorter name")
    known = (await connection.execute(SELECT_ROLE, {"name": name})).first()
    rights = f"login password '{scram_verifier(password)}'" if password is not None else "nologin"
    await connection.exec_driver_sql(f'{"alter" if known else "create"} role "{name}" {rights}')


async def ensure_node_login(connection: AsyncConnection, database: str, node: NodeLogin) -> None:
    """Create the role of a node as a member of its kind's role, or change its password."""
    name = node.role(database)
    await ensure_role(connection, name, node.password)
    await connection.exec_driver_sql(f'grant "{role_name(database, ServiceRole(node.kind))}" to "{name}"')
    values = {"kind": node.kind, "node_name": node.node_name, "credential_id": node.credential_id, "pool": node.pool}
    await connection.execute(BIND_ROLE, {"role": name, **values})


def scram_verifier(password: str) -> str:
    """Return the verifier that Postgres stores for a password (RFC 5802, RFC 7677).

    It keeps the password out of statements and logs. The passwords are ours and plain ASCII, for which SASLprep changes
    nothing.
    """
    salt = secrets.token_bytes(16)
    salted = pbkdf2_hmac("sha256", password.encode(), salt, SCRAM_ITERATIONS)
    stored = sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    encoded = (b64encode(part).decode() for part in (salt, stored, server))
    return "SCRAM-SHA-256${}:{}${}:{}".format(SCRAM_ITERATIONS, *encoded)


def database_of(url: str) -> str:
    """Return the name of the database in a URL."""
    return urlsplit(url).path.lstrip("/")


def _login_url(owner_url: str, user: str, password: str) -> str:
    parts = urlsplit(owner_url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user)}:{quote(password, safe='')}@{host}"))
