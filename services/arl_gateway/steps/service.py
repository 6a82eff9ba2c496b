"""Reports about training steps, and their end."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from arl_core.steps.trajectory_record import saving_s
from arl_gateway.http.auth import Caller
from arl_gateway.steps import queries
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, Row
from arl_wire.errors import NotFound
from arl_wire.internal.admission import AffectedRowsResponse, EndStepRequest
from arl_wire.steps import ResourceSaving, StepReport, StepTrajectoryStatus, TrajectoryTimes

__all__ = ["StepService"]

CPU = "cpu"
_CPU_MILLI = "cpu_milli"


class StepService:
    """The training steps of the caller's project."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, admission_url: str) -> None:
        self._store = store
        self._peers = peers
        self._admission_url = admission_url

    async def end(self, task: str, step: int, caller: Caller) -> None:
        """End a step. Raises `NotFound` if the task has no actions."""
        body = EndStepRequest(project_id=caller.project_id, task=task, step=step)
        content = await self._peers.call(f"{self._admission_url}/internal/end-step", body, audience="admission")
        if AffectedRowsResponse.model_validate_json(content).count == 0:
            raise _unknown_task(task)

    async def report(self, task: str, step: int, caller: Caller) -> StepReport:
        """Return the progress of a step. Raises `NotFound` for an unknown task or step."""
        async with self._store.read() as tx:
            queue = await queries.queue_id(tx, project_id=caller.project_id, task=task)
            if queue is None:
                raise _unknown_task(task)
            ended = await queries.ended_step(tx, queue_id=queue, step=step)
            summary = await queries.step_summary(tx, queue_id=queue, step=step)
            rows = await queries.step_trajectories(tx, queue_id=queue, step=step)
            nodes = await queries.capacities(tx)
        if ended is None and not rows:
            raise NotFound(f"step {step} of task {task!r} does not exist, or its first action is only seconds old")
        trajectories = [_trajectory(row) for row in rows]
        is_open = ended is None and summary.open > 0
        return StepReport(
            task=task,
            step=step,
            started_at=summary.started_at,
            ended_at=None if is_open else summary.ended_at or (ended.ended_at if ended is not None else None),
            open=summary.open,
            ended=summary.ended,
            unpredicted=summary.unpredicted,
            critical=summary.critical,
            projected_end_at=summary.projected_end_at if is_open else None,
            slowest=trajectories[0] if trajectories else None,
            savings=_savings(json.loads(rows[0].waits), _unit_counts(nodes)) if rows else [],
            trajectories=trajectories,
        )


def _unknown_task(task: str) -> NotFound:
    return NotFound(f"task {task!r} does not exist: its first action creates it")


def _trajectory(row: Row) -> StepTrajectoryStatus:
    names = TrajectoryTimes.model_fields
    return StepTrajectoryStatus(
        trajectory=row.trajectory,
        prompt=row.prompt,
        group=row.trajectory_group,
        started_at=row.started_at,
        ended_at=row.ended_at,
        turns=row.turns,
        expected_turns=row.expected_turns,
        times=TrajectoryTimes(**{name: round(getattr(row, name), 6) for name in names}),
        projected_end_at=row.projected_end_at,
        log_deviation=row.log_deviation,
        rule=row.boost,
    )


def _unit_counts(nodes: Sequence[Row]) -> dict[str, float]:
    """Return the units of each resource: cores, slots, and calls per second (without a rate: calls at once)."""
    found: Counter[str] = Counter()
    for node in nodes:
        rates = json.loads(node.rates or "{}")
        for resource, amount in json.loads(node.capacity).items():
            if resource == _CPU_MILLI:
                found[CPU] += amount / 1000
            else:
                found[resource] += rates[resource]["per_s"] if resource in rates else amount
    return dict(found)


def _savings(waits: Mapping[str, float], units: Mapping[str, float]) -> list[ResourceSaving]:
    ordered = sorted(waits.items(), key=lambda each: -each[1])
    return [
        ResourceSaving(
            resource=resource,
            units=units.get(resource, 0.0),
            waited_s=round(waited_s, 6),
            saved_s=round(saving_s(waited_s, units=units.get(resource, 0.0)), 6),
        )
        for resource, waited_s in ordered
    ]
