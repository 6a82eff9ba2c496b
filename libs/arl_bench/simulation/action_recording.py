"""Conversion of settled actions to a trace for the simulator. Only actions that ran to their own end are usable."""

from collections.abc import Iterable, Iterator

from arl_core.domain.model import call_resource, slot_resource
from arl_core.domain.states import ActionOutcome
from arl_sim.workloads.trace import RecordedAction, RecordedTask
from arl_wire.actions.action import Action, ElasticDemand
from arl_wire.admin.queues import Queue, QueueQuota

__all__ = ["record_actions", "record_tasks"]

RAN_OUTCOMES = frozenset(
    {ActionOutcome.OK, ActionOutcome.USER_ERROR, ActionOutcome.USER_TIMEOUT, ActionOutcome.LIMIT_EXCEEDED}
)
RECORDED_KINDS = frozenset({"exec", "score", "call"})
_CORES_RESOURCE = "cpu_milli"


def record_actions(actions: Iterable[Action]) -> Iterator[RecordedAction]:
    """Yield settled actions that ran and did more than create or change an environment."""
    for action in actions:
        if action.kind in RECORDED_KINDS and action.outcome in RAN_OUTCOMES and action.settled_at is not None:
            yield RecordedAction(
                task=action.task,
                trajectory=action.trajectory,
                class_key=action.class_key,
                submitted_s=action.created_at.timestamp(),
                ended_s=action.settled_at.timestamp(),
                run_s=action.times.run_s or 0.0,
                allocation=action.allocation or {},
                demand=action.demand,
                max_cpu_milli=_max_units(action),
                step=action.elastic.step if action.elastic is not None else 1,
                parallel_fraction=_parallel_fraction(action.elastic),
                in_environment=action.environment is not None,
                priority=action.priority,
                deadline_s=_deadline_s(action),
                resizable=action.elastic.resizable if action.elastic is not None else "none",
            )


def record_tasks(queues: Iterable[Queue]) -> dict[str, RecordedTask]:
    """Return the weight and the quota of each task."""
    return {
        queue.task: RecordedTask(
            weight=queue.weight,
            running=queue.quota.running if queue.quota is not None else None,
            resources=_counted_resources(queue.quota) if queue.quota is not None else {},
        )
        for queue in queues
    }


def _counted_resources(quota: QueueQuota) -> dict[str, int]:
    services = {slot_resource(name): most for name, most in quota.reward_services.items()}
    return services | {call_resource(name): most for name, most in quota.endpoints.items()}


def _deadline_s(action: Action) -> float | None:
    return (action.deadline_at - action.created_at).total_seconds() if action.deadline_at is not None else None


def _max_units(action: Action) -> int:
    return action.elastic.max if action.elastic is not None else action.demand.get(_CORES_RESOURCE, 0)


def _parallel_fraction(elastic: ElasticDemand | None) -> float:
    """Return Amdahl's parallel fraction. For a table, it is the one that matches the first and the last entry."""
    declared = elastic.elasticity if elastic is not None else {}
    if declared.get("model") == "table":
        seconds = sorted((int(amount), float(value)) for amount, value in declared["seconds"].items())
        (least, slow), (most, fast) = seconds[0], seconds[-1]
        return min(1.0, max(0.0, (1.0 - fast / slow) / (1.0 - least / most))) if most > least else 0.0
    return float(declared.get("parallel_fraction", 0.0))
