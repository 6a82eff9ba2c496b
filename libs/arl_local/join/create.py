"""`python -m arl_local.join.create`: create a join token on the control machine."""

import argparse
import asyncio
import json
import os
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import sqlalchemy.exc

from arl_local.credentials import NODE_KINDS, NodeIdentity, joined_node_secrets
from arl_local.database import EMBEDDED_DATABASE
from arl_local.join.credentials import JoinedNode
from arl_local.join.join_token import JoinToken
from arl_local.postgres.embedded_postgres import EmbeddedPostgres
from arl_local.postgres.shared_postgres import authority_certificate, shared_url
from arl_local.state_dir import StateDir
from arl_store.join_repository import NodeNameInUse, RolesNotPermitted, StoredToken, create_token
from arl_store.logins import NodeLogin, node_role_url

__all__ = ["DEFAULT_TTL_S", "CreatedToken", "NotServing", "create_join_token"]

DEFAULT_TTL_S = 3600.0
MAX_TTL_S = 30 * 86_400.0
_CREDENTIAL_BYTES = 8
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class NotServing(RuntimeError):
    """The system does not serve other machines."""


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A new token and what the node needs besides it."""

    node_name: str
    kind: str
    pool: str
    url: str
    """Address of the gateway, which exchanges the token."""
    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class _Addresses:
    gateway: str
    scheduler: str
    owner_url: str
    shared_url: str
    authority: str | None


async def create_join_token(
    state: StateDir,
    *,
    kind: str,
    name: str | None = None,
    pool: str = "default",
    ttl_s: float = DEFAULT_TTL_S,
    database_url: str | None = None,
) -> CreatedToken:
    """Create the credentials of a node and the token with which it gets them once.

    `database_url` is that of the owner of an external Postgres; None is the embedded one. Raises ValueError for a wrong
    argument and `NotServing`.
    """
    token, credential_id = JoinToken.generate(), secrets.token_hex(_CREDENTIAL_BYTES)
    node = NodeIdentity(kind, _checked_name(f"{kind}-{token.id[:6]}" if name is None else name))
    _check(kind=kind, pool=pool, ttl_s=ttl_s)
    addresses = _addresses(state, database_url)
    login = NodeLogin(kind, node.name, secrets.token_urlsafe(32), credential_id, pool)
    joined = JoinedNode(
        name=node.name,
        kind=kind,
        pool=pool,
        token_id=token.id,
        version=version("arl-tangram"),
        gateway_url=addresses.gateway,
        scheduler_url=addresses.scheduler,
        database_url=node_role_url(addresses.shared_url, login),
        ca_certificate=addresses.authority,
        secrets=joined_node_secrets(state, node, credential_id),
    )
    stored = StoredToken(token.id, token.proof_hash, token.encrypt(joined.model_dump()), ttl_s)
    try:
        expires_at = await create_token(addresses.owner_url, login, stored)
    except NodeNameInUse:
        raise ValueError(
            f"--name {node.name}: a node has this name. Choose another, or remove that node first:"
            f" tangram nodes remove {node.name}"
        ) from None
    except RolesNotPermitted:
        raise NotServing(
            "the owner of the database may not create roles, so that a node cannot have credentials of its own. Grant"
            " it the attribute CREATEROLE"
        ) from None
    return CreatedToken(node.name, kind, pool, addresses.gateway, str(token), expires_at)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"--name {name}: must be 1 to 63 letters, digits, '-', '_' and '.', as in a host name")
    return name


def _check(*, kind: str, pool: str, ttl_s: float) -> None:
    if kind not in NODE_KINDS:
        raise ValueError(f"--kind {kind}: must be one of {', '.join(NODE_KINDS)}")
    if not _NAME.fullmatch(pool):
        raise ValueError(f"--pool {pool}: must be 1 to 63 letters, digits, '-', '_' and '.'")
    if not 1 <= ttl_s <= MAX_TTL_S:
        raise ValueError("--ttl: must be from 1 s to 30 days")


def _addresses(state: StateDir, database_url: str | None) -> _Addresses:
    """Return the addresses at which nodes reach the system. Raises `NotServing` if there are none."""
    urls = state.endpoints()
    if not urls:
        raise NotServing(f"no system has started in {state.path}. Start one: tangram up -d --listen ADDRESS")
    local_only = NotServing(
        "the system serves this machine only. Start it with the address on which nodes reach it:"
        " tangram up -d --listen ADDRESS"
    )
    if database_url is None:
        if (shared := shared_url(state)) is None:
            raise local_only
        owner_url = EmbeddedPostgres(state.path).owner_url(EMBEDDED_DATABASE)
        return _Addresses(urls["gateway"], urls["scheduler"], owner_url, shared, authority_certificate(state))
    if _is_loopback(urls["scheduler"]) and not _is_loopback(database_url):
        raise local_only
    if not urlsplit(database_url).hostname:
        raise NotServing("TANGRAM_DATABASE_URL names a Unix socket, which other machines cannot reach; use a host name")
    return _Addresses(urls["gateway"], urls["scheduler"], database_url, database_url, None)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or "localhost"
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _main(environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(description="Create a join token and print it as JSON.")
    parser.add_argument("--dir", type=Path, required=True, help="state directory of the system")
    parser.add_argument("--kind", default="cpu")
    parser.add_argument("--name")
    parser.add_argument("--pool", default="default")
    parser.add_argument("--ttl", type=float, default=DEFAULT_TTL_S, metavar="SECONDS")
    chosen = parser.parse_args()
    wanted = {"kind": chosen.kind, "name": chosen.name, "pool": chosen.pool, "ttl_s": chosen.ttl}
    database_url = environment.get("TANGRAM_DATABASE_URL")
    try:
        created = asyncio.run(create_join_token(StateDir(chosen.dir), **wanted, database_url=database_url))
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return 2
    except (FileNotFoundError, ConnectionRefusedError):
        print("the system is not running. Start it: tangram up -d --listen ADDRESS", file=sys.stderr)  # noqa: T201
        return 1
    except sqlalchemy.exc.DBAPIError as error:
        print(f"Postgres refuses to create the credentials: {error.orig}", file=sys.stderr)  # noqa: T201
        return 1
    except (NotServing, OSError, asyncpg.PostgresError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return 1
    print(json.dumps(asdict(created) | {"expires_at": created.expires_at.isoformat()}))  # noqa: T201 - a command line
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(os.environ))
