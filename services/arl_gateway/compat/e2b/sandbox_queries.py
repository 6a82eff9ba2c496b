"""Statements about E2B sandboxes. Each row belongs to an environment; the database's clock decides on its end."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import text

from arl_store.tx import ReadTx, Row, WriteTx

__all__ = [
    "delete_sandbox",
    "insert_sandbox",
    "list_expiries",
    "list_sandboxes",
    "sandbox_by_id",
    "sandbox_by_signature",
    "sandbox_by_token",
    "set_paused",
    "set_timeout",
]

_SANDBOX = """
    select s.environment_id as id, s.project_id, s.key_id, p.name as project, s.template, s.metadata, s.variables,
           s.access_token, s.has_public_ports, s.created_at, s.ends_at, s.paused_at, q.task, e.trajectory,
           e.memory_mib, e.disk_mib, e.pids,
           exists (select 1 from nodes as n
                    where n.id = e.node_id and n.enforced @> '[{"name": "users", "level": "enforced"}]') as has_users
      from e2b_sandboxes as s
      join environments as e on e.id = s.environment_id
      join queues as q on q.id = e.queue_id
      join projects as p on p.id = s.project_id
     where e.ended_at is null
       and e.lost_at is null
       and e.delete_requested_at is null
       and (s.ends_at > now() or s.paused_at is not null)
"""

SANDBOX_BY_ID = text(
    _SANDBOX + " and s.environment_id = :id and (cast(:project_id as int) is null or s.project_id = :project_id)"
)

SANDBOX_BY_TOKEN = text(_SANDBOX + " and s.access_token = :token")

# E2B's signature: the SHA-256 of path, operation, user, token and, if given, the expiry.
SANDBOX_BY_SIGNATURE = text(
    _SANDBOX
    + """
       and rtrim(encode(sha256(convert_to(:before || s.access_token || :after, 'UTF8')), 'base64'), '=') = :signature
     limit 1
"""
)

LIST_SANDBOXES = text(
    _SANDBOX
    + """
       and s.project_id = :project_id
       and s.metadata @> cast(:metadata as jsonb)
       and (cast(:is_paused as boolean) is null or (s.paused_at is not null) = :is_paused)
       and (cast(:template as text) is null or s.template = :template)
     order by s.created_at, s.environment_id
"""
)

INSERT_SANDBOX = text("""
    insert into e2b_sandboxes (environment_id, project_id, key_id, template, metadata, variables, access_token,
                               has_public_ports, ends_at)
    values (:id, :project_id, :key_id, :template, cast(:metadata as jsonb), cast(:variables as jsonb), :access_token,
            :has_public_ports, now() + make_interval(secs => :timeout_s))
        on conflict (environment_id) do nothing
""")

SET_TIMEOUT = text("""
    update e2b_sandboxes
       set ends_at = case when :may_shorten then now() + make_interval(secs => :timeout_s)
                          else greatest(ends_at, now() + make_interval(secs => :timeout_s)) end,
           paused_at = null
     where environment_id = :id
""")

PAUSE = text("update e2b_sandboxes set paused_at = now() where environment_id = :id and paused_at is null")

DELETE_SANDBOX = text("delete from e2b_sandboxes where environment_id = :id")

LIST_EXPIRIES = text("""
    select s.environment_id as id, extract(epoch from s.ends_at - now()) as left_s, s.project_id, s.key_id,
           p.name as project
      from e2b_sandboxes as s
      join projects as p on p.id = s.project_id
     where s.paused_at is null
       and (cast(:id as uuid) is null or s.environment_id = :id)
     order by s.ends_at
""")


async def sandbox_by_id(tx: ReadTx, id: UUID, *, project_id: int | None = None) -> Row | None:
    """Return a sandbox that has not ended, or None."""
    return await tx.first(SANDBOX_BY_ID, {"id": id, "project_id": project_id})


async def sandbox_by_token(tx: ReadTx, token: str) -> Row | None:
    """Return the sandbox with this access token, or None."""
    return await tx.first(SANDBOX_BY_TOKEN, {"token": token})


async def sandbox_by_signature(tx: ReadTx, *, before: str, after: str, signature: str) -> Row | None:
    """Return the sandbox whose token between `before` and `after` has this signature, or None."""
    return await tx.first(SANDBOX_BY_SIGNATURE, {"before": before, "after": after, "signature": signature})


async def list_sandboxes(
    tx: ReadTx, *, project_id: int, metadata: str, is_paused: bool | None, template: str | None
) -> Sequence[Row]:
    """Return sandboxes that have not ended, oldest first. `metadata` is a JSON object that theirs contains."""
    asked = {"project_id": project_id, "metadata": metadata, "is_paused": is_paused, "template": template}
    return await tx.fetch(LIST_SANDBOXES, asked)


async def insert_sandbox(tx: WriteTx, values: Mapping[str, Any]) -> None:
    """Insert a sandbox. Do nothing if its environment already has one."""
    await tx.execute(INSERT_SANDBOX, values)


async def set_timeout(tx: WriteTx, id: UUID, timeout_s: int, *, may_shorten: bool) -> None:
    """Set the end of a sandbox from now on, and resume it."""
    await tx.execute(SET_TIMEOUT, {"id": id, "timeout_s": timeout_s, "may_shorten": may_shorten})


async def set_paused(tx: WriteTx, id: UUID) -> bool:
    """Pause a sandbox. Return False if it was already paused."""
    return await tx.execute(PAUSE, {"id": id}) == 1


async def delete_sandbox(tx: WriteTx, id: UUID) -> None:
    """Delete the row of an ended sandbox."""
    await tx.execute(DELETE_SANDBOX, {"id": id})


async def list_expiries(tx: ReadTx, id: UUID | None = None) -> Sequence[Row]:
    """Return the seconds until each sandbox ends, or until one of them does. Paused sandboxes do not end."""
    return await tx.fetch(LIST_EXPIRIES, {"id": id})
