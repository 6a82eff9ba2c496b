"""Statements about training steps. The scheduler saves the progress of their trajectories every few seconds."""

from collections.abc import Sequence

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["LISTED", "capacities", "ended_step", "queue_id", "step_summary", "step_trajectories"]

LISTED = 100
"""Maximum number of trajectories in a report."""

QUEUE_ID = text("select id from queues where project_id = :project_id and task = :task")

ENDED_STEP = text("select ended_at from training_steps where queue_id = :queue_id and step = :step")

SUMMARY = text("""
    select min(started_at) as started_at, max(ended_at) as ended_at,
           count(*) filter (where ended_at is null) as open,
           count(*) filter (where ended_at is not null) as ended,
           count(*) filter (where ended_at is null and rest_s is null) as unpredicted,
           count(*) filter (where ended_at is null and boost = 'critical_trajectory') as critical,
           max(saved_at + make_interval(secs => rest_s)) filter (where ended_at is null) as projected_end_at
      from step_trajectories
     where queue_id = :queue_id
       and step = :step
""")

# Open trajectories without a prediction come after those with one.
TRAJECTORIES = text("""
    select trajectory, prompt, trajectory_group, expected_turns, started_at, ended_at, turns, think_s, queue_s, run_s,
           core_wait_s, overhead_s, waits::text as waits, log_deviation, boost,
           case when ended_at is null then saved_at + make_interval(secs => rest_s) end as projected_end_at
      from step_trajectories
     where queue_id = :queue_id
       and step = :step
     order by coalesce(ended_at, saved_at + make_interval(secs => coalesce(rest_s, 0))) desc, trajectory
     limit :limit
""")

CAPACITIES = text("""
    select capacity::text as capacity, rates::text as rates
      from nodes
      join node_beats on node_beats.node_id = nodes.id and node_beats.epoch = nodes.epoch
     where last_beat > now() - interval '60 s'
""")


async def queue_id(tx: ReadTx, *, project_id: int, task: str) -> int | None:
    """Return the id of the task's queue; None if the task has none."""
    row = await tx.first(QUEUE_ID, {"project_id": project_id, "task": task})
    return None if row is None else int(row.id)


async def ended_step(tx: ReadTx, *, queue_id: int, step: int) -> Row | None:
    """Return the row of a step that a client ended."""
    return await tx.first(ENDED_STEP, {"queue_id": queue_id, "step": step})


async def step_summary(tx: ReadTx, *, queue_id: int, step: int) -> Row:
    """Return the counts and times of all trajectories of a step."""
    return (await tx.fetch(SUMMARY, {"queue_id": queue_id, "step": step}))[0]


async def step_trajectories(tx: ReadTx, *, queue_id: int, step: int) -> Sequence[Row]:
    """Return the first trajectories of a step, the latest end first."""
    return await tx.fetch(TRAJECTORIES, {"queue_id": queue_id, "step": step, "limit": LISTED})


async def capacities(tx: ReadTx) -> Sequence[Row]:
    """Return the capacity and the rates of each live node."""
    return await tx.fetch(CAPACITIES)
