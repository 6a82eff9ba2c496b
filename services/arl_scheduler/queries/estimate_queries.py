"""Statements about estimates of run times. Every write is in a transaction that locks the leader's term."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from arl_core.domain.model import Fence
from arl_core.domain.states import COMPLETED_OUTCOMES
from arl_store.tx import ReadTx, WriteTx

__all__ = ["RunDuration", "delete_estimates", "read_estimates", "read_runs", "save_estimates"]

READ_ESTIMATES = text("""
    select class_key, runs
      from (select class_key, runs::text as runs, seen_at from class_estimates order by seen_at desc limit :limit) as e
     order by seen_at
""")

SAVE_ESTIMATES = text("""
    insert into class_estimates (class_key, runs)
    select class_key, runs::json
      from unnest(cast(:keys as bigint[]), cast(:runs as text[])) as k (class_key, runs)
     order by class_key
        on conflict (class_key) do update
       set runs = excluded.runs, seen_at = now()
""")

DELETE_ESTIMATES = text("delete from class_estimates where seen_at < now() - make_interval(days => :days)")

# Naming the ids twice lets Postgres prune partitions before it opens them.
READ_RUNS = text("""
    select a.id, a.grant_no, coalesce(a.counted_us, a.run_us) as run_us, r.cpu_us
      from actions as a
      join action_results as r on r.id = a.id and r.id = any(cast(:ids as uuid[]))
     where a.id = any(cast(:ids as uuid[]))
       and a.state = 'settled'
       and a.outcome = any(cast(:outcomes as text[]))
       and a.run_us is not null
""")


@dataclass(frozen=True, slots=True)
class RunDuration:
    """The counted time and the CPU time of an attempt that ran to its own end.

    The counted time is the run time without waiting for cores that are shared.
    """

    run_us: int
    cpu_us: int
    wall_us: int | None = None
    """Real run time, if it is known to differ."""

    @property
    def real_us(self) -> int:
        """Return the real run time."""
        return self.run_us if self.wall_us is None else self.wall_us


async def read_estimates(tx: ReadTx, *, limit: int) -> dict[int, Sequence[Sequence[int]]]:
    """Return the estimates of `arl_core.durations.estimates` by class: the most recently seen classes, oldest first."""
    return {row.class_key: json.loads(row.runs) for row in await tx.fetch(READ_ESTIMATES, {"limit": limit})}


async def save_estimates(tx: WriteTx, runs_by_class: Mapping[int, Sequence[Sequence[int]]]) -> None:
    """Save the runs of these classes; they replace earlier ones."""
    await tx.execute(
        SAVE_ESTIMATES, {"keys": list(runs_by_class), "runs": [json.dumps(runs) for runs in runs_by_class.values()]}
    )


async def delete_estimates(tx: WriteTx, *, days: int) -> int:
    """Delete estimates of classes that were not seen for `days`."""
    return await tx.execute(DELETE_ESTIMATES, {"days": days})


async def read_runs(tx: ReadTx, ids: Collection[UUID]) -> dict[Fence, RunDuration]:
    """Return the runs of the actions that settled and ran to their own end."""
    rows = await tx.fetch(READ_RUNS, {"ids": sorted(ids), "outcomes": sorted(COMPLETED_OUTCOMES)})
    return {Fence(row.id, row.grant_no): RunDuration(row.run_us, row.cpu_us) for row in rows}
