"""States, outcomes and the edges between them, as data.

The trigger in Postgres and the diagram in the README are generated from `EDGES`; what is not listed
here cannot happen to a row.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "COMPLETED_OUTCOMES",
    "MANAGER_ROLES",
    "TRANSITIONS",
    "ActionOutcome",
    "ActionState",
    "ServiceRole",
    "StateTransition",
]


class ActionState(StrEnum):
    QUEUED = "queued"  # admitted and durable; holds nothing
    GRANTED = "granted"  # the scheduler gave it amounts on a node; nothing has started
    RUNNING = "running"  # its manager committed to run it
    SETTLED = "settled"  # one outcome, for ever


class ActionOutcome(StrEnum):
    OK = "ok"  # exit code 0
    USER_ERROR = "user_error"  # its code failed: exit code other than 0, or a signal of its own
    USER_TIMEOUT = "user_timeout"  # it ran longer than its timeout_s
    LIMIT_EXCEEDED = "limit_exceeded"  # the reason names the limit: memory, pids, disk or output
    INFRA_ERROR = "infra_error"  # ours, not its; the reason says what
    DEADLINE_IN_QUEUE = "deadline_in_queue"  # its deadline passed before it started
    CANCELLED = "cancelled"  # the client's wish was in time


COMPLETED_OUTCOMES = frozenset({ActionOutcome.OK, ActionOutcome.USER_ERROR})
"""How long these took says how long others will."""


class ServiceRole(StrEnum):
    """Who may write. Each is a role in Postgres, named after the database and this value."""

    GATEWAY = "gateway"
    ADMISSION = "admission"
    SCHEDULER = "scheduler"
    CPU = "cpu"
    GPU = "gpu"
    API = "api"


MANAGER_ROLES = frozenset({ServiceRole.CPU, ServiceRole.GPU, ServiceRole.API})

_ADMISSION = frozenset({ServiceRole.ADMISSION})
_SCHEDULER = frozenset({ServiceRole.SCHEDULER})
_RUN_OUTCOMES = frozenset(ActionOutcome) - {ActionOutcome.DEADLINE_IN_QUEUE}


@dataclass(frozen=True, slots=True)
class StateTransition:
    """One allowed change of a row. `outcomes` is empty where the new state has none."""

    old: ActionState
    new: ActionState
    writers: frozenset[ServiceRole]
    outcomes: frozenset[ActionOutcome] = frozenset()
    reason: str = ""


TRANSITIONS: tuple[StateTransition, ...] = (
    StateTransition(ActionState.QUEUED, ActionState.QUEUED, _ADMISSION, reason="cancel wish"),
    StateTransition(ActionState.GRANTED, ActionState.GRANTED, _ADMISSION, reason="cancel wish"),
    StateTransition(ActionState.RUNNING, ActionState.RUNNING, _ADMISSION | _SCHEDULER, reason="cancel wish; resize"),
    StateTransition(ActionState.QUEUED, ActionState.GRANTED, _SCHEDULER, reason="grant: the fence rises"),
    StateTransition(
        ActionState.QUEUED,
        ActionState.SETTLED,
        _SCHEDULER,
        frozenset({ActionOutcome.DEADLINE_IN_QUEUE, ActionOutcome.CANCELLED, ActionOutcome.INFRA_ERROR}),
        reason="deadline, cancel, environment lost",
    ),
    StateTransition(ActionState.GRANTED, ActionState.RUNNING, MANAGER_ROLES, reason="start"),
    StateTransition(ActionState.GRANTED, ActionState.QUEUED, MANAGER_ROLES | _SCHEDULER, reason="refused; node lost"),
    StateTransition(
        ActionState.RUNNING,
        ActionState.QUEUED,
        MANAGER_ROLES | _SCHEDULER,
        reason="infra error or node lost, retry left",
    ),
    StateTransition(
        ActionState.GRANTED, ActionState.SETTLED, MANAGER_ROLES, _RUN_OUTCOMES, reason="cancel, set-up failed"
    ),
    StateTransition(ActionState.RUNNING, ActionState.SETTLED, MANAGER_ROLES, _RUN_OUTCOMES, reason="it ended"),
    StateTransition(
        ActionState.GRANTED, ActionState.SETTLED, _SCHEDULER, frozenset({ActionOutcome.INFRA_ERROR}), reason="node lost"
    ),
    StateTransition(
        ActionState.RUNNING,
        ActionState.SETTLED,
        _SCHEDULER,
        frozenset({ActionOutcome.INFRA_ERROR}),
        reason="node lost, no retry left",
    ),
)
