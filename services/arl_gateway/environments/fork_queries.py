"""Statements about the source of forks."""

from uuid import UUID

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["fork_source"]

FORK_SOURCE = text("""
    select e.id, e.node_id, n.name as node, n.url as node_url, n.credential_id as node_credential_id,
           q.task, e.trajectory, e.template, e.memory_mib, e.disk_mib, e.pids, e.idle_ttl_s, e.end_reason,
           e.network::text as network,
           case when e.ended_at is not null then 'ended'
                when e.lost_at is not null then 'lost'
                when e.delete_requested_at is not null then 'ending'
                else 'live' end as state,
           (select s.payload ->> 'env'
              from actions as a
              join action_specs as s on s.id = a.id
             where a.queue_id = e.queue_id and a.trajectory = e.trajectory
               and a.environment_id = e.id and a.kind = 'environment.create' and a.outcome = 'ok'
             order by a.id
             limit 1) as variables,
           (select sum(r.leftover_processes)
              from actions as a
              join action_results as r on r.id = a.id
             where a.queue_id = e.queue_id and a.trajectory = e.trajectory
               and a.environment_id = e.id and a.kind = 'exec' and a.state = 'settled') as leftover_processes
      from environments as e
      join queues as q on q.id = e.queue_id
      join nodes as n on n.id = e.node_id
     where e.id = :id
       and e.project_id = :project_id
""")


async def fork_source(tx: ReadTx, id: UUID, *, project_id: int) -> Row | None:
    """Return an environment with its node, its variables (JSON) and its left-over processes. None if unknown."""
    rows = await tx.fetch(FORK_SOURCE, {"id": id, "project_id": project_id})
    return rows[0] if rows else None
