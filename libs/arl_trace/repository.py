"""Queries of the histories of actions."""

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import text

from arl_core.domain.states import ActionOutcome, ActionState
from arl_store.tx import ReadTx, Row
from arl_trace.history import ActionHistory, AttemptRecord, NodeStage

__all__ = ["histories", "history_of", "recently_settled", "traceparents"]

# An action that settled at its first grant has a run time and no earlier attempts, so `attempts` is not searched.
# Naming the ids twice lets Postgres prune partitions before it opens them.
HISTORIES = text("""
    select a.id, a.project_id, q.task, a.kind, a.trajectory, a.state, a.outcome, a.reason, a.grant_no, a.is_critical,
           n.name as node,
           a.created_at, a.granted_at, a.started_at, a.settled_at, a.run_us, s.traceparent, s.tracestate,
           s.step, nullif(s.labels, '{}')::text as labels, s.demand::text as demand,
           case when a.kind = 'exec' and a.state = 'settled'
                then (select r.exit_code
                        from action_results as r
                       where r.id = a.id
                         and r.id = any(cast(:ids as uuid[]))
                         and r.grant_no = a.grant_no) end as exit_code,
           case when a.kind in ('score', 'call') and a.state = 'settled'
                then (select r.timeline::text
                        from action_results as r
                       where r.id = a.id
                         and r.id = any(cast(:ids as uuid[]))
                         and r.grant_no = a.grant_no) end as timeline,
           case when a.grant_no > 1 or (a.grant_no = 1 and a.run_us is null)
                then (select json_agg(json_build_object('grant_no', t.grant_no, 'node', m.name,
                                                        'granted_at', t.granted_at, 'started_at', t.started_at,
                                                        'ended_at', t.ended_at, 'reason', t.reason)
                                      order by t.grant_no)::text
                        from attempts as t
                        left join nodes as m on m.id = t.node_id
                       where t.id = a.id) end as earlier
      from actions as a
      join queues as q on q.id = a.queue_id
      join action_specs as s on s.id = a.id and s.id = any(cast(:ids as uuid[]))
      left join nodes as n on n.id = a.node_id
     where a.id = any(cast(:ids as uuid[]))
""")

# Ids are in order of admission. Actions admitted long before they settled are not found.
RECENTLY_SETTLED = text("""
    select id
      from actions
     where id > first_uuid_at(now() - make_interval(secs => :admitted_s))
       and state = 'settled'
       and settled_at > now() - make_interval(secs => :settled_s)
     order by id desc
     limit :limit
""")

TRACEPARENTS = text("""
    select id, traceparent, tracestate from action_specs where id = any(cast(:ids as uuid[]))
""")


async def histories(tx: ReadTx, ids: Collection[UUID]) -> Sequence[Row]:
    """Return the rows of actions of any project; `history_of` converts a row."""
    return await tx.fetch(HISTORIES, {"ids": list(ids)})


async def recently_settled(tx: ReadTx, *, settled_s: float, admitted_s: float, limit: int) -> list[UUID]:
    """Return actions that settled in the last `settled_s` seconds, admitted in the last `admitted_s` seconds."""
    rows = await tx.fetch(RECENTLY_SETTLED, {"settled_s": settled_s, "admitted_s": admitted_s, "limit": limit})
    return [row.id for row in rows]


async def traceparents(tx: ReadTx, ids: Collection[UUID]) -> Sequence[Row]:
    """Return the id and the trace context of these actions, of any project."""
    return await tx.fetch(TRACEPARENTS, {"ids": list(ids)})


def history_of(row: Row) -> ActionHistory:
    """Return the history of an action from a row of `histories`."""
    # By key and not by attribute: attribute access looks up twice, and this runs for every action.
    earlier = tuple(map(_parse_attempt, json.loads(row["earlier"]))) if row["earlier"] is not None else ()
    outcome = row["outcome"]
    timeline = json.loads(row["timeline"]) if row["timeline"] is not None else {}
    return ActionHistory(
        id=row["id"],
        task=row["task"],
        kind=row["kind"],
        state=ActionState(row["state"]),
        created_at=row["created_at"],
        trajectory=row["trajectory"],
        step=row["step"],
        is_critical=row["is_critical"],
        labels=json.loads(row["labels"] or "{}"),
        demand=json.loads(row["demand"]),
        exit_code=row["exit_code"],
        outcome=ActionOutcome(outcome) if outcome is not None else None,
        reason=row["reason"],
        settled_at=row["settled_at"],
        run_us=row["run_us"],
        node_us=timeline.get("us"),
        stages=tuple(map(_parse_stage, timeline.get("stages", ()))),
        earlier_attempts=earlier,
        current_attempt=_current_attempt(row, earlier),
        traceparent=row["traceparent"],
        tracestate=row["tracestate"],
    )


def _current_attempt(row: Row, earlier: Sequence[AttemptRecord]) -> AttemptRecord | None:
    """Return the attempt in the row. A queued action has none: its last attempt is among the earlier ones."""
    granted_at, grant_no = row["granted_at"], row["grant_no"]
    if granted_at is None or row["state"] == ActionState.QUEUED or (earlier and earlier[-1].grant_no == grant_no):
        return None
    return AttemptRecord(grant_no, row["node"], granted_at, row["started_at"], row["settled_at"])


def _parse_stage(entry: dict[str, Any]) -> NodeStage:
    known = {name: entry.pop(name) for name in NodeStage._fields if name in entry}
    return NodeStage(**known, attributes=tuple((f"tangram.{name}", value) for name, value in entry.items()))


def _parse_attempt(attempt: dict[str, Any]) -> AttemptRecord:
    times = {name: _parse_time(attempt[name]) for name in ("granted_at", "started_at", "ended_at")}
    return AttemptRecord(**{**attempt, **times})


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
