"""Statements about the use of environments by connections to their ports."""

from uuid import UUID

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["environment_activity", "find_key"]

# Running actions come first. Two ids suffice: one is the connections' own action.
ENVIRONMENT_ACTIVITY = text("""
    select e.ended_at is null and e.lost_at is null and e.delete_requested_at is null as is_live,
           exists (select from e2b_sandboxes as s
                    where s.environment_id = e.id and s.paused_at is not null) as is_paused,
           array(select a.id
                   from actions as a
                  where a.queue_id = e.queue_id
                    and a.trajectory = e.trajectory
                    and a.state <> 'settled'
                  order by a.state = 'queued', a.id
                  limit 2) as active
      from environments as e
     where e.id = :id
""")

KEY_OF_URL = text("""
    select k.id, k.project_id, p.name as project, k.scopes
      from api_keys as k
      join projects as p on p.id = k.project_id
     where k.id = :id
       and k.revoked_at is null
       and (k.expires_at is null or k.expires_at > now())
""")


async def environment_activity(tx: ReadTx, id: UUID) -> Row | None:
    """Return whether an environment can be used, and up to two of its actions that have not settled."""
    return await tx.first(ENVIRONMENT_ACTIVITY, {"id": id})


async def find_key(tx: ReadTx, id: int) -> Row | None:
    """Return the key with which a URL was signed, or None if it is no longer valid."""
    return await tx.first(KEY_OF_URL, {"id": id})
