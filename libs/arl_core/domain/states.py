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
    "EstimateBasis",
    "ServiceRole",
    "StateTransition",
    "WaitReason",
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


class WaitReason(StrEnum):
    """Why a queued action does not run. Each is said where none above it holds."""

    QUEUE_PAUSED = "queue_paused"  # nothing of its task starts
    ENVIRONMENT_BUSY = "environment_busy"  # others come before it in its environment, or that is ending
    STARTS_NEXT_ROUND = "starts_next_round"  # a round would grant it now
    NO_NODE_FITS = "no_node_fits"  # no node there is could ever run it
    NO_NODE_OPEN = "no_node_open"  # those that could are closed, or gave no sign of life
    TASK_AT_QUOTA = "task_at_quota"  # its task's quota lets no more of it start
    POSTPONED_FOR_MORE_CORES = "postponed_for_more_cores"  # it fits, and ends sooner if it waits for more or for others
    WAITS_BEHIND_OVERDUE = "waits_behind_overdue"  # it fits, in what is kept for an overdue one, and may last too long
    WAITS_FOR_GANG = "waits_for_gang"  # it fits, and not all of those that start with it do
    WAITS_BEHIND_PRIORITY = "waits_behind_priority"  # higher priorities go first
    WAITS_IN_ORDER = "waits_in_order"  # others of its task and priority go first
    WAITS_BEHIND_FAIR_SHARE = "waits_behind_fair_share"  # first in its task; tasks that had less go first
    WAITS_FOR_CAPACITY = "waits_for_capacity"  # nobody goes first; too little is free


class EstimateBasis(StrEnum):
    """What an expected duration rests on."""

    LEARNT = "learnt"  # runs of its very class
    POOLED = "pooled"  # runs of classes like it
    DECLARED = "declared"  # nothing was seen: what the client declared, and an assumption
