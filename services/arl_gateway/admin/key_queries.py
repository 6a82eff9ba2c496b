"""Statements about API keys."""

from collections.abc import Sequence

from sqlalchemy import text

from arl_store.tx import ReadTx, Row, WriteTx

__all__ = ["insert_key", "key_by_hash", "key_by_id", "key_with_hash", "list_keys", "revoke_key"]


KEY_BY_HASH = text("""
    select k.id, k.project_id, p.name as project, k.scopes,
           extract(epoch from k.expires_at - now())::float8 as expires_in_s
      from api_keys as k
      join projects as p on p.id = k.project_id
     where k.hash = :hash
       and k.revoked_at is null
       and (k.expires_at is null or k.expires_at > now())
""")

_KEY = """
    select k.id, k.project_id, p.name as project, k.prefix, encode(substring(k.hash for 8), 'hex') as fingerprint,
           k.scopes, k.created_at, k.expires_at, k.revoked_at,
           extract(epoch from k.expires_at - k.created_at)::float8 as lifetime_s,
           coalesce(k.expires_at <= now(), false) as is_expired
      from {keys} as k
      join projects as p on p.id = k.project_id
"""

INSERT_KEY = text(f"""
    with made as (
        insert into api_keys (project_id, prefix, hash, scopes, expires_at)
        values (:project_id, :prefix, :hash, cast(:scopes as text[]),
                now() + make_interval(secs => cast(:expires_in_s as float8)))
            on conflict (hash) do nothing
     returning *
    )
    {_KEY.format(keys="made")}
""")  # noqa: S608 - constants of this module

KEY_BY_ID = text(_KEY.format(keys="api_keys") + " where k.id = :id and k.project_id = :project_id")

KEY_WITH_HASH = text(_KEY.format(keys="api_keys") + " where k.hash = :hash")

LIST_KEYS = text(
    _KEY.format(keys="api_keys")
    + """
     where k.project_id = :project_id
       and (cast(:before as int) is null or k.id < :before)
     order by k.id desc
     limit :limit
    """
)

REVOKE_KEY = text("""
    update api_keys
       set revoked_at = now()
     where id = :id
       and project_id = :project_id
       and revoked_at is null
""")


async def key_by_hash(tx: ReadTx, digest: bytes) -> Row | None:
    """Return the key with this hash, of any project, or None."""
    return await tx.first(KEY_BY_HASH, {"hash": digest})


async def insert_key(
    tx: WriteTx, *, project_id: int, prefix: str, digest: bytes, scopes: Sequence[str], expires_in_s: int | None
) -> Row | None:
    """Insert a key and return its row, or None if a key with this hash exists."""
    return await tx.first(
        INSERT_KEY,
        {
            "project_id": project_id,
            "prefix": prefix,
            "hash": digest,
            "scopes": list(scopes),
            "expires_in_s": expires_in_s,
        },
    )


async def key_by_id(tx: ReadTx, *, id: int, project_id: int) -> Row | None:
    """Return a key of the project, or None."""
    return await tx.first(KEY_BY_ID, {"id": id, "project_id": project_id})


async def key_with_hash(tx: ReadTx, digest: bytes) -> Row | None:
    """Return the key with this hash, of any project and in any state, or None."""
    return await tx.first(KEY_WITH_HASH, {"hash": digest})


async def list_keys(tx: ReadTx, *, project_id: int, before: int | None, limit: int) -> Sequence[Row]:
    """Return keys, newest first."""
    return await tx.fetch(LIST_KEYS, {"project_id": project_id, "before": before, "limit": limit})


async def revoke_key(tx: WriteTx, *, id: int, project_id: int) -> bool:
    """Revoke a key. Return False if it does not exist or was already revoked."""
    return await tx.execute(REVOKE_KEY, {"id": id, "project_id": project_id}) > 0
