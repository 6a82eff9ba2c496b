"""The end of trajectories and of training steps."""

from collections.abc import Callable, Sequence

from arl_admission.trajectories import queries
from arl_store.tx import PostgresStore
from arl_wire.internal.admission import AffectedRowsResponse, EndStepRequest, EndTrajectoryRequest
from arl_wire.internal.scheduler import EndedTrajectory

__all__ = ["TrajectoryOperations"]


class TrajectoryOperations:
    """Operations on trajectories and steps.

    `notify` asks the scheduler to read the changed rows, and sends it the trajectories that ended.
    """

    def __init__(self, store: PostgresStore, *, notify: Callable[[Sequence[EndedTrajectory]], None]) -> None:
        self._store = store
        self._notify = notify

    async def end(self, request: EndTrajectoryRequest) -> AffectedRowsResponse:
        """Request the cancellation of a trajectory's actions and the end of its environment."""
        count = 0
        async with self._store.write() as tx:
            queue = await queries.queue_id(tx, project_id=request.project_id, task=request.task)
            if queue is not None:
                count = await queries.end_trajectory(tx, queue_id=queue, trajectory=request.trajectory)
        if queue is not None:
            self._notify([EndedTrajectory(queue_id=queue, trajectory=request.trajectory)])
        return AffectedRowsResponse(count=count)

    async def end_step(self, request: EndStepRequest) -> AffectedRowsResponse:
        """End a training step. The count is 0 if the task has no queue."""
        async with self._store.write() as tx:
            queue = await queries.queue_id(tx, project_id=request.project_id, task=request.task)
            if queue is None:
                return AffectedRowsResponse(count=0)
            await queries.end_step(tx, queue_id=queue, step=request.step)
        self._notify([])
        return AffectedRowsResponse(count=1)
