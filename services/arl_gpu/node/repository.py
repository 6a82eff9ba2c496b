"""SQL statements of the GPU manager. Every state change checks the node's epoch and the fence."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import text

from arl_core.domain.model import Fence
from arl_gpu.catalog.registrations import DesiredService
from arl_gpu.queue.score_jobs import ScoreReport
from arl_node.repository import (
    ACTIVE_ON_NODE,
    EDGE_ROWS,
    fence_columns,
    load_statement,
    reported_edge,
    start_statement,
)
from arl_store.tx import ReadTx, Row, WriteTx
from arl_store.values import storable, storable_json

__all__ = ["load", "poll", "publish_services", "settle", "start"]

# Registration time of the service that an action names; null for a built-in service.
REGISTERED_AT_COLUMN = """, (select extract(epoch from v.registered_at)::float8
              from services as v
             where v.name = s.payload ->> 'service'
               and v.kind is not null) as registered_at"""

PUBLISH_SERVICES = text("""
    update nodes
       set services = cast(:services as jsonb), capacity = cast(:capacity as jsonb)
     where id = :node_id
       and epoch = :epoch
""")

POLL = text(f"""
    select ({ACTIVE_ON_NODE}) as held,
           (select coalesce(json_agg(w), '[]')::text
              from (select name, kind, source, options, pinned,
                           extract(epoch from registered_at)::float8 as registered_at,
                           extract(epoch from drained_at)::float8 as drained_at,
                           extract(epoch from load_requested_at)::float8 as load_asked
                      from services) as w) as wishes
""")  # noqa: S608 - a constant of the library

START, LOAD = start_statement(REGISTERED_AT_COLUMN), load_statement(REGISTERED_AT_COLUMN)

# A score can always be recomputed, so an infra_error goes back to the queue while retries are left.
SETTLE = text(f"""
    with report as materialized (
        select *
          from unnest(cast(:ids as uuid[]), cast(:grant_nos as int[]), cast(:outcomes as text[]),
                      cast(:reasons as text[]), cast(:run_us as bigint[]), cast(:cpu_us as bigint[]),
                      cast(:messages as text[]), cast(:scores as text[]), cast(:timelines as text[]))
               as r (id, grant_no, outcome, reason, run_us, cpu_us, message, scores, timeline)
    ), {reported_edge()}, result as (
        insert into action_results (id, grant_no, cpu_us, message, scores, timeline)
        select id, grant_no, cpu_us, message, scores::json, timeline::json
          from edge
          join report using (id, grant_no)
         where edge.state = 'settled'
    )
    {EDGE_ROWS}
""")  # noqa: S608 - constants of the library


async def publish_services(tx: WriteTx, services: str, capacity: str, *, node_id: int, epoch: UUID) -> None:
    """Publish the services, their health and their slots. If the epoch has changed, the update matches no row."""
    # The health can quote an engine's response.
    said = {"services": storable_json(services), "capacity": capacity, "node_id": node_id, "epoch": epoch}
    await tx.execute(PUBLISH_SERVICES, said)


async def poll(tx: ReadTx, *, node_id: int, epoch: UUID) -> tuple[list[dict[str, Any]], list[DesiredService]]:
    """Return the node's granted and running rows, and the services that operators registered."""
    row = (await tx.fetch(POLL, {"node_id": node_id, "epoch": epoch}))[0]
    return json.loads(row.held), [DesiredService(**wish) for wish in json.loads(row.wishes)]


async def start(tx: WriteTx, fences: Sequence[Fence], *, epoch: UUID) -> Sequence[Row]:
    """Start the granted rows and return them with their specs. A missing fence was lost."""
    return await tx.fetch(START, {**fence_columns(fences), "epoch": epoch})


async def load(tx: ReadTx, ids: Sequence[UUID], *, epoch: UUID) -> Sequence[Row]:
    """Return the specs of running rows that never reached the device."""
    return await tx.fetch(LOAD, {"ids": sorted(ids), "epoch": epoch})


async def settle(tx: WriteTx, reports: Sequence[ScoreReport], *, epoch: UUID) -> Sequence[Row]:
    """Record each outcome once. Return the rows that settled or were re-queued; a lost fence changes nothing."""
    return await tx.fetch(
        SETTLE,
        {
            **fence_columns([report.fence for report in reports]),
            "outcomes": [report.outcome for report in reports],
            "reasons": [report.reason for report in reports],
            "run_us": [report.run_us for report in reports],
            "cpu_us": [report.cpu_us for report in reports],
            "messages": [storable(report.message) for report in reports],
            "scores": [storable_json(report.scores) for report in reports],
            "timelines": [report.timeline for report in reports],
            "epoch": epoch,
        },
    )
