"""Join tokens in Postgres, as the owner of the database creates them and the gateway exchanges them."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from arl_store.logins import NodeLogin, database_of, ensure_node_login
from arl_store.tx import ReadTx, Row, WriteTx, engine_for

__all__ = ["NodeNameInUse", "RolesNotPermitted", "StoredToken", "claim_token", "create_token", "token_by_id"]

MAY_CREATE_ROLES = text("select rolsuper or rolcreaterole as may from pg_roles where rolname = current_user")
LOCK_NODE_NAME = text("select pg_advisory_xact_lock(hashtext('tangram.join.' || cast(:name as text)))")
NAME_IN_USE = text("""
    select 1
      from nodes as n
      join node_beats as b on b.node_id = n.id
     where n.name = :name
""")
REVOKE_NAME = text("select revoke_node(:name)")
# A removed node of this name keeps its row, because actions name it.
GIVE_ROW = text("update nodes set db_role = :role, kind = :kind, credential_id = :credential_id where name = :name")
ROLES_OF_EXPIRED = text("""
    select t.node_name
      from join_tokens as t
     where t.expires_at < now()
       and not exists (select from nodes as n join node_beats as b on b.node_id = n.id where n.name = t.node_name)
       and t.used_at is null
""")
DELETE_EXPIRED = text("delete from join_tokens where expires_at < now() - interval '1 day'")
INSERT_TOKEN = text("""
    insert into join_tokens (id, node_name, proof_hash, credentials, expires_at)
    values (:id, :node_name, :proof_hash, :credentials, now() + make_interval(secs => :ttl_s))
 returning expires_at
""")
# A node whose response was lost repeats its request with the same claim.
CLAIM_TOKEN = text("""
    update join_tokens
       set used_at = coalesce(used_at, now()), claim_hash = :claim_hash, used_from = coalesce(used_from, :used_from)
     where id = :id
       and proof_hash = :proof_hash
       and expires_at > now()
       and (claim_hash is null or claim_hash = :claim_hash)
 returning node_name, credentials, used_at = now() as is_first
""")
TOKEN_BY_ID = text("""
    select node_name, proof_hash, used_at, used_from, expires_at, expires_at <= now() as is_expired
      from join_tokens
     where id = :id
""")


class NodeNameInUse(ValueError):
    """A node of this name exists already."""


class RolesNotPermitted(RuntimeError):
    """The owner of the database may not create roles, so that a node cannot have credentials of its own."""


@dataclass(frozen=True, slots=True)
class StoredToken:
    """Stored part of a join token. It does not suffice to decrypt the credentials."""

    id: str
    proof_hash: bytes
    credentials: bytes
    ttl_s: float


async def create_token(owner_url: str, login: NodeLogin, token: StoredToken) -> datetime:
    """Create the role of a node, and the token for its credentials. Return the time at which the token expires.

    An earlier token for this name is no longer valid. Raises `NodeNameInUse` and `RolesNotPermitted`.
    """
    engine = engine_for(owner_url)
    try:
        async with engine.begin() as connection:
            if not (await connection.execute(MAY_CREATE_ROLES)).scalar():
                raise RolesNotPermitted
            await connection.execute(LOCK_NODE_NAME, {"name": login.node_name})
            if (await connection.execute(NAME_IN_USE, {"name": login.node_name})).first() is not None:
                raise NodeNameInUse
            expired = [row.node_name for row in await connection.execute(ROLES_OF_EXPIRED)]
            for name in {*expired, login.node_name}:
                await connection.execute(REVOKE_NAME, {"name": name})
            await connection.execute(DELETE_EXPIRED)
            database = database_of(owner_url)
            await ensure_node_login(connection, database, login)
            ours = {"role": login.role(database), "kind": login.kind, "credential_id": login.credential_id}
            await connection.execute(GIVE_ROW, {**ours, "name": login.node_name})
            values = {"id": token.id, "node_name": login.node_name, "ttl_s": token.ttl_s}
            inserted = await connection.execute(
                INSERT_TOKEN, {**values, "proof_hash": token.proof_hash, "credentials": token.credentials}
            )
            expires_at: datetime = inserted.scalar_one()
            return expires_at
    finally:
        await engine.dispose()


async def claim_token(tx: WriteTx, id: str, *, proof_hash: bytes, claim_hash: bytes, used_from: str) -> Row | None:
    """Use a token. Return `node_name` and `credentials`, or None if it is not valid for this claim."""
    return await tx.first(
        CLAIM_TOKEN, {"id": id, "proof_hash": proof_hash, "claim_hash": claim_hash, "used_from": used_from}
    )


async def token_by_id(tx: ReadTx, id: str) -> Row | None:
    """Return the state of a token, or None."""
    return await tx.first(TOKEN_BY_ID, {"id": id})
