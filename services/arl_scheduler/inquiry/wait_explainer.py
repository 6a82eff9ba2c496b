"""Explanations of why a queued action waits, from the leader's index. They do not affect rounds."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from arl_core.domain.states import WaitReason
from arl_core.durations.curves import ParallelismOption
from arl_core.inquiry.explain import QueueExplanation, explain
from arl_core.policies.policy import SchedulingPolicy
from arl_scheduler.index.environments import QueuePosition
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_wire.actions.explanations import AheadCounts, ExpectedRunTime, ResourceShortfall, StepPosition, WaitExplanation
from arl_wire.environments.images import ImagePullProgress
from arl_wire.errors import NotFound, Unavailable
from arl_wire.internal.scheduler import (
    ExplainRequest,
    ExplainResponse,
    FindStragglersRequest,
    FindStragglersResponse,
    StragglerPayload,
)

__all__ = ["WaitExplainer"]


class WaitExplainer:
    """Answers to questions about the leader's index."""

    def __init__(self, loop: SchedulingLoop, policy: SchedulingPolicy) -> None:
        self._loop = loop
        self._policy = policy
        self._lock = asyncio.Lock()

    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """Explain why an action waits.

        Raises `NotFound` if it is not queued, and `Unavailable` if another scheduler leads.
        """
        async with self._lock:
            # Rounds and other requests run between explanations.
            await asyncio.sleep(0)
            return self._explain(request.id)

    async def stragglers(self, request: FindStragglersRequest) -> FindStragglersResponse:
        """Return stragglers as of the last poll. Raises `Unavailable` if another scheduler leads."""
        if self._loop.view() is None:
            raise _not_leader_error()
        straggling = self._loop.straggler_detector
        found = straggling.longest(request.limit) if request.only is None else straggling.find(request.only)
        return FindStragglersResponse(
            stragglers=[
                StragglerPayload(
                    id=each.fence.action_id,
                    allocation=dict(each.resources),
                    elapsed_s=round(each.elapsed_s, 3),
                    limit_s=round(each.limit_s, 3),
                )
                for each in found
            ]
        )

    def _explain(self, id: UUID) -> ExplainResponse:
        view = self._loop.view()
        if view is None:
            raise _not_leader_error()
        index, snapshot = view
        standing = index.queue_position(id)
        if standing is None:
            raise NotFound(f"action {id} is not in the scheduler's queue")
        image = _missing_image(index, standing)
        found = explain(snapshot, standing.action, self._policy, blocked_by=_blocked_by(standing, image))
        is_pulling = found.reason is WaitReason.PULLING_IMAGE
        about = {"trajectory": _step_position(index, id), "image": image if is_pulling else None}
        wait = _to_response(found, standing).model_copy(update=about)
        return ExplainResponse(node=None if is_pulling else found.node, wait=wait)


def _not_leader_error() -> Unavailable:
    return Unavailable("this scheduler does not lead, or has just started to lead; try again", retry_after_s=1)


def _missing_image(index: SchedulerIndex, position: QueuePosition) -> ImagePullProgress | None:
    """Return the pull of the image that no node has, or None."""
    name = index.images.missing_image(position.action.cls)
    if name is None:
        return None
    row = next(iter(index.images.rows(name)), None)
    if row is None:
        return ImagePullProgress(image=name, state="wanted")
    node = index.nodes.get(row.node)
    return ImagePullProgress(
        image=name,
        state=row.state,
        node=node.name if node is not None else None,
        bytes=row.bytes,
        bytes_done=row.bytes_done,
        message=row.message,
    )


def _blocked_by(position: QueuePosition, image: ImagePullProgress | None) -> WaitReason | None:
    if position.is_paused:
        return WaitReason.QUEUE_PAUSED
    if position.action.gang is not None and not position.action.gang_members:
        return WaitReason.WAITS_FOR_GANG
    if not position.is_next:
        return WaitReason.ENVIRONMENT_BUSY
    return WaitReason.PULLING_IMAGE if image is not None else None


def _to_response(explanation: QueueExplanation, position: QueuePosition) -> WaitExplanation:
    ahead = explanation.ahead
    return WaitExplanation(
        reason=explanation.reason,
        shortfalls=[
            ResourceShortfall(resource=each.resource, needed=each.needed, free=each.available, capacity=each.capacity)
            for each in explanation.shortages
        ],
        time_limit_s=explanation.time_limit_s if explanation.time_left_s is not None else None,
        time_left_s=round(explanation.time_left_s, 1) if explanation.time_left_s is not None else None,
        unenforced=sorted(explanation.unenforced),
        ahead=AheadCounts(
            priority=ahead.priority,
            in_task=ahead.in_task,
            other_tasks=ahead.other_tasks,
            truncated=ahead.is_lower_bound,
        )
        if ahead is not None
        else None,
        ahead_in_environment=position.ahead_count if position.action.environment is not None else None,
        effective_arrival_at=datetime.fromtimestamp(explanation.effective_arrival, UTC),
        size_penalty_s=round(explanation.size_penalty_s, 3),
        excess_usage_s=round(explanation.debt_s, 3),
        fair_share=round(explanation.fair_share, 6),
        resource=explanation.resource,
        at_min=_to_expected_run(explanation.min_parallelism),
        at_max=_to_expected_run(explanation.max_parallelism),
        basis=explanation.basis,
        observed_runs=explanation.runs,
        backlog_s=round(explanation.backlog_s, 3) if explanation.backlog_s is not None else None,
    )


def _step_position(index: SchedulerIndex, action_id: UUID) -> StepPosition | None:
    """Return the position of the action's trajectory in its step; None without a step."""
    tracked = index.steps.record_of(action_id)
    if tracked is None:
        return None
    key, record = tracked
    return StepPosition(
        step=key.step,
        rule=record.rule,
        turns=record.turns,
        expected_turns=record.expected_turns,
        projected_rest_s=round(record.rest_s, 3) if record.rest_s is not None else None,
        log_deviation=round(record.log_deviation, 3) if record.log_deviation is not None else None,
    )


def _to_expected_run(option: ParallelismOption) -> ExpectedRunTime:
    return ExpectedRunTime(amount=option.amount, seconds=round(option.seconds, 6))
