"""Statements about training steps. Every write is in a transaction that locks the leader's term."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import text

from arl_store.tx import ReadTx, Row, WriteTx

__all__ = ["delete_old", "read_open", "read_paces", "read_passes", "save_passes", "save_trajectories"]

_COLUMNS = {
    "queue_id": "int",
    "step": "int",
    "trajectory": "text",
    "prompt": "text",
    "trajectory_group": "text",
    "expected_turns": "int",
    "progress": "float8",
    "node_id": "int",
    "started_at": "float8",
    "active_at": "float8",
    "ended_at": "float8",
    "turns": "int",
    "think_s": "float8",
    "queue_s": "float8",
    "run_s": "float8",
    "core_wait_s": "float8",
    "overhead_s": "float8",
    "cpu_s": "float8",
    "waits": "json",
    "rest_s": "float8",
    "log_deviation": "float8",
    "boost": "text",
}
_TIMES = {"started_at", "active_at", "ended_at"}
_NAMES = ", ".join(_COLUMNS)
_VALUES = ", ".join(f"to_timestamp({name})" if name in _TIMES else name for name in _COLUMNS)
_TYPES = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
_KEY = ("queue_id", "step", "trajectory")
_UPDATES = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in _KEY)
_READ = ", ".join(f"extract(epoch from {name})::float8 as {name}" if name in _TIMES else name for name in _COLUMNS)

SAVE_TRAJECTORIES = text(f"""
    insert into step_trajectories ({_NAMES})
    select {_VALUES}
      from json_to_recordset(cast(cast(:rows as text) as json)) as r ({_TYPES})
     order by queue_id, step, trajectory
        on conflict (queue_id, step, trajectory) do update
       set {_UPDATES}, saved_at = now()
""")  # noqa: S608 - constants of this module

READ_OPEN = text(f"""
    select {_READ.replace("waits,", "waits::text as waits,")}
      from step_trajectories
     where ended_at is null
       and active_at > now() - make_interval(secs => :idle_s)
     order by active_at desc
     limit :limit
""")  # noqa: S608 - constants of this module

READ_PACES = text("""
    select queue_id, sum(turns)::float8 as turns, sum(think_s + run_s) as solo_s, sum(cpu_s) as cpu_s,
           count(*) filter (where ended_at is not null)::float8 as trajectories,
           coalesce(sum(think_s + run_s) filter (where ended_at is not null), 0) as total_s
      from (select * from step_trajectories order by active_at desc limit :limit) as t
     group by queue_id
""")

READ_PASSES = text("""
    select p.queue_id, p.prompt, p.passes::text as passes
      from prompt_passes as p
      join unnest(cast(:queue_ids as int[]), cast(:prompts as text[])) as asked (queue_id, prompt)
     using (queue_id, prompt)
""")

SAVE_PASSES = text("""
    insert into prompt_passes (queue_id, prompt, passes)
    select queue_id, prompt, passes::json
      from unnest(cast(:queue_ids as int[]), cast(:prompts as text[]), cast(:passes as text[]))
           as k (queue_id, prompt, passes)
     order by queue_id, prompt
        on conflict (queue_id, prompt) do update
       set passes = excluded.passes, seen_at = now()
""")

DELETE_OLD = (
    text("delete from step_trajectories where active_at < now() - make_interval(days => :days)"),
    text("delete from prompt_passes where seen_at < now() - make_interval(days => :days)"),
    text("delete from training_steps where ended_at < now() - make_interval(days => :days)"),
)


async def read_open(tx: ReadTx, *, idle_s: float, limit: int) -> Sequence[Row]:
    """Return the open trajectories that were active in the last `idle_s` seconds, the latest first."""
    return await tx.fetch(READ_OPEN, {"idle_s": idle_s, "limit": limit})


async def read_paces(tx: ReadTx, *, limit: int) -> Sequence[Row]:
    """Return sums over the latest trajectories of each task."""
    return await tx.fetch(READ_PACES, {"limit": limit})


async def read_passes(tx: ReadTx, prompts: Iterable[tuple[int, str]]) -> dict[tuple[int, str], list[tuple[int, float]]]:
    """Return step and solo seconds of earlier trajectories, by task and prompt."""
    asked = sorted(prompts)
    named = {"queue_ids": [queue for queue, _ in asked], "prompts": [prompt for _, prompt in asked]}
    rows = await tx.fetch(READ_PASSES, named)
    return {(row.queue_id, row.prompt): [(step, s) for step, s in json.loads(row.passes)] for row in rows}


async def save_trajectories(tx: WriteTx, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert or replace rows of trajectories. Times are seconds since the epoch."""
    await tx.execute(SAVE_TRAJECTORIES, {"rows": json.dumps(rows)})


async def save_passes(tx: WriteTx, passes: Mapping[tuple[int, str], Sequence[tuple[int, float]]]) -> None:
    """Insert or replace the history of prompts."""
    named = {"queue_ids": [queue for queue, _ in passes], "prompts": [prompt for _, prompt in passes]}
    await tx.execute(SAVE_PASSES, named | {"passes": [json.dumps(each) for each in passes.values()]})


async def delete_old(tx: WriteTx, *, days: int) -> None:
    """Delete trajectories, prompts and steps that were not active for `days`."""
    for statement in DELETE_OLD:
        await tx.execute(statement, {"days": days})
