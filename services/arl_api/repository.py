"""Statements of the broker. Every transition names this node's epoch and the fence."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import text

from arl_api.calls import CallReport
from arl_core.domain.model import Fence
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

__all__ = ["load", "poll", "publish", "settle", "start"]

PUBLISH = text("""
    update nodes
       set endpoints = cast(:endpoints as jsonb), capacity = cast(:capacity as jsonb), rates = cast(:rates as jsonb)
     where id = :node_id
       and epoch = :epoch
""")

POLL = text(f"select ({ACTIVE_ON_NODE}) as held")

START, LOAD = start_statement(""), load_statement("")

# Calls that must not be repeated have no retries: admission ensures this.
SETTLE = text(f"""
    with report as materialized (
        select *
          from unnest(cast(:ids as uuid[]), cast(:grant_nos as int[]), cast(:outcomes as text[]),
                      cast(:reasons as text[]), cast(:run_us as bigint[]), cast(:messages as text[]),
                      cast(:bodies as bytea[]), cast(:body_bytes as bigint[]), cast(:responses as text[]),
                      cast(:timelines as text[]))
               as r (id, grant_no, outcome, reason, run_us, message, body, body_bytes, response, timeline)
    ), {reported_edge()}, result as (
        insert into action_results (id, grant_no, message, stdout, stdout_bytes, response, timeline)
        select id, grant_no, message, body, body_bytes, response::json, timeline::json
          from edge
          join report using (id, grant_no)
         where edge.state = 'settled'
    )
    {EDGE_ROWS}
""")  # noqa: S608 - constants of the library


async def publish(tx: WriteTx, endpoints: str, capacity: str, rates: str, *, node_id: int, epoch: UUID) -> None:
    """Write the node's endpoints, capacity and rates. Under another epoch nothing changes."""
    said = {"endpoints": storable_json(endpoints), "capacity": capacity, "rates": rates}
    await tx.execute(PUBLISH, {**said, "node_id": node_id, "epoch": epoch})


async def poll(tx: ReadTx, *, node_id: int, epoch: UUID) -> list[dict[str, Any]]:
    """Return granted and running rows."""
    row = (await tx.fetch(POLL, {"node_id": node_id, "epoch": epoch}))[0]
    held: list[dict[str, Any]] = json.loads(row.held)
    return held


async def start(tx: WriteTx, fences: Sequence[Fence], *, epoch: UUID) -> Sequence[Row]:
    """Start granted fences and return the running ones with their specs. A missing fence was lost."""
    return await tx.fetch(START, {**fence_columns(fences), "epoch": epoch})


async def load(tx: ReadTx, ids: Sequence[UUID], *, epoch: UUID) -> Sequence[Row]:
    """Return the specs of running rows that were never sent."""
    return await tx.fetch(LOAD, {"ids": sorted(ids), "epoch": epoch})


async def settle(tx: WriteTx, reports: Sequence[CallReport], *, epoch: UUID) -> Sequence[Row]:
    """Record each outcome once. Return the rows that settled or were re-queued; a lost fence changes nothing."""
    answers = [report.endpoint_response for report in reports]
    return await tx.fetch(
        SETTLE,
        {
            **fence_columns([report.fence for report in reports]),
            "outcomes": [report.outcome for report in reports],
            "reasons": [report.reason for report in reports],
            "run_us": [report.run_us for report in reports],
            "messages": [storable(report.message) for report in reports],
            "bodies": [answer.body if answer is not None else b"" for answer in answers],
            "body_bytes": [answer.total_bytes if answer is not None else 0 for answer in answers],
            "responses": [storable_json(report.response_json) for report in reports],
            "timelines": [report.timeline for report in reports],
            "epoch": epoch,
        },
    )
