"""Statements that end trajectories and training steps."""

from sqlalchemy import text

from arl_store.tx import ReadTx, WriteTx

__all__ = ["end_step", "end_trajectory", "queue_id"]

QUEUE_ID = text("select id from queues where project_id = :project_id and task = :task")

REQUEST_ENVIRONMENT_DELETE = text("""
    update environments
       set delete_requested_at = now(), changed_xid = pg_current_xact_id()
     where queue_id = :queue_id
       and trajectory = :trajectory
       and delete_requested_at is null
""")

REQUEST_TRAJECTORY_CANCEL = text("""
    update actions
       set cancel_requested_at = now()
     where id in (select id
                    from actions
                   where queue_id = :queue_id
                     and trajectory = :trajectory
                     and state <> 'settled'
                     and cancel_requested_at is null
                   order by id
                     for no key update)
""")

# The time of the first end is kept.
END_STEP = text("""
    insert into training_steps (queue_id, step)
    values (:queue_id, :step)
        on conflict (queue_id, step) do update
       set changed_xid = pg_current_xact_id()
""")


async def queue_id(tx: ReadTx, *, project_id: int, task: str) -> int | None:
    """Return the id of the task's queue; None if the task has none."""
    row = await tx.first(QUEUE_ID, {"project_id": project_id, "task": task})
    return None if row is None else int(row.id)


async def end_trajectory(tx: WriteTx, *, queue_id: int, trajectory: str) -> int:
    """Request the end of the environment and the cancellation of unsettled actions. Return the number of rows."""
    named = {"queue_id": queue_id, "trajectory": trajectory}
    # Actions first, as in settling statements; otherwise the two could deadlock.
    return await tx.execute(REQUEST_TRAJECTORY_CANCEL, named) + await tx.execute(REQUEST_ENVIRONMENT_DELETE, named)


async def end_step(tx: WriteTx, *, queue_id: int, step: int) -> None:
    """End a training step."""
    await tx.execute(END_STEP, {"queue_id": queue_id, "step": step})
