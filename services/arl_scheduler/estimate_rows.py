"""The statements about what was learnt of durations. Every write is in a transaction that holds the leader's term."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from arl_core.fence import Fence
from arl_core.states import RAN_TO_ITS_END
from arl_store.tx import ReadTx, WriteTx

__all__ = ["Run", "forget_estimates", "keep_estimates", "read_estimates", "runs_of"]

READ_ESTIMATES = text("""
    select class_key, runs
      from (select class_key, runs::text as runs, seen_at from class_estimates order by seen_at desc limit :limit) as e
     order by seen_at
""")

KEEP_ESTIMATES = text("""
    insert into class_estimates (class_key, runs)
    select class_key, runs::json
      from unnest(cast(:keys as bigint[]), cast(:runs as text[])) as k (class_key, runs)
     order by class_key
        on conflict (class_key) do update
       set runs = excluded.runs, seen_at = now()
""")

FORGET_ESTIMATES = text("delete from class_estimates where seen_at < now() - make_interval(days => :days)")

# That the ids are named twice lets Postgres leave out partitions before it opens them.
RUNS_OF = text("""
    select a.id, a.grant_no, a.run_us, r.cpu_us
      from actions as a
      join action_results as r on r.id = a.id and r.id = any(cast(:ids as uuid[]))
     where a.id = any(cast(:ids as uuid[]))
       and a.state = 'settled'
       and a.outcome = any(cast(:outcomes as text[]))
       and a.run_us is not null
""")


@dataclass(frozen=True, slots=True)
class Run:
    """What an attempt took that ran to its own end."""

    run_us: int
    cpu_us: int


async def read_estimates(tx: ReadTx, *, limit: int) -> dict[int, Sequence[Sequence[int]]]:
    """By class, as `arl_core.estimates` wrote it: those that were seen last, the longest ago first."""
    return {row.class_key: json.loads(row.runs) for row in await tx.fetch(READ_ESTIMATES, {"limit": limit})}


async def keep_estimates(tx: WriteTx, kept: Mapping[int, Sequence[Sequence[int]]]) -> None:
    await tx.execute(KEEP_ESTIMATES, {"keys": list(kept), "runs": [json.dumps(runs) for runs in kept.values()]})


async def forget_estimates(tx: WriteTx, *, days: int) -> int:
    """Of classes that were not seen for so long."""
    return await tx.execute(FORGET_ESTIMATES, {"days": days})


async def runs_of(tx: ReadTx, ids: Collection[UUID]) -> dict[Fence, Run]:
    """Of those among them that settled and ran to their own end."""
    rows = await tx.fetch(RUNS_OF, {"ids": sorted(ids), "outcomes": sorted(RAN_TO_ITS_END)})
    return {Fence(row.id, row.grant_no): Run(row.run_us, row.cpu_us) for row in rows}
