"""Action states, outcomes and the transitions between them, as data.

The Postgres trigger is generated from `TRANSITIONS`, so the database rejects any other transition. The page
`reference/outcomes` of the documentation is generated from this module.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "COMPLETED_OUTCOMES",
    "MANAGER_ROLES",
    "MASKED_OUTCOMES",
    "TRANSITIONS",
    "ActionOutcome",
    "ActionState",
    "EstimateBasis",
    "ServiceRole",
    "StateTransition",
    "UnstartedReason",
    "WaitReason",
]


class ActionState(StrEnum):
    """The states of an action, in order."""

    QUEUED = "queued"  # admitted and durable; no resources allocated
    GRANTED = "granted"  # the scheduler allocated amounts on a node; nothing has started
    RUNNING = "running"  # its manager committed to run it
    SETTLED = "settled"  # final: has exactly one outcome


class ActionOutcome(StrEnum):
    """The outcomes of a settled action."""

    OK = "ok"  # the program ended with exit code 0
    USER_ERROR = "user_error"  # the program failed: an exit code other than 0, or a signal
    USER_TIMEOUT = "user_timeout"  # it ran longer than its timeout_s
    LIMIT_EXCEEDED = "limit_exceeded"  # the reason names the limit: memory, pids, disk or output
    INFRA_ERROR = "infra_error"  # an infrastructure failure; the reason names it
    DEADLINE_IN_QUEUE = "deadline_in_queue"  # its deadline passed before it started
    CANCELLED = "cancelled"  # the client cancelled it in time


COMPLETED_OUTCOMES = frozenset({ActionOutcome.OK, ActionOutcome.USER_ERROR})
"""Outcomes after which the run time is used for duration estimates."""
MASKED_OUTCOMES = frozenset({ActionOutcome.INFRA_ERROR, ActionOutcome.CANCELLED, ActionOutcome.DEADLINE_IN_QUEUE})
"""Outcomes that say nothing about the program: a trainer masks the sample instead of giving it a reward."""


ENVIRONMENT_OUT_OF_MEMORY = "environment_out_of_memory"
"""End reason of an environment whose programs used up its memory, so that the kernel ended its first process.

Later actions of the environment settle as `limit_exceeded` with this reason: a program must not turn its own failure
into an infrastructure error.
"""


class ServiceRole(StrEnum):
    """The roles that may write. Each is a Postgres role, named after the database and this value."""

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
    """An allowed change of a row. `outcomes` is empty if the new state has none."""

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
        frozenset(
            {
                ActionOutcome.DEADLINE_IN_QUEUE,
                ActionOutcome.CANCELLED,
                ActionOutcome.INFRA_ERROR,
                ActionOutcome.LIMIT_EXCEEDED,
            }
        ),
        reason="deadline, cancel, environment lost or out of memory",
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
    """The reasons for which a queued action does not run; the first one that applies is reported."""

    QUEUE_PAUSED = "queue_paused"  # nothing of its task starts
    ENVIRONMENT_BUSY = "environment_busy"  # earlier actions of its environment are not done, or it is ending
    PULLING_IMAGE = "pulling_image"  # no node has its image yet
    STARTS_NEXT_ROUND = "starts_next_round"  # a round would grant it now
    NO_NODE_FITS = "no_node_fits"  # no existing node could ever run it
    NO_SCHEDULABLE_NODE = "no_schedulable_node"  # nodes that could run it are not schedulable or not alive
    NODES_END_TOO_SOON = "nodes_end_too_soon"  # the machines end these nodes before its time limit
    TASK_AT_QUOTA = "task_at_quota"  # the quota of its task allows no more
    POSTPONED_FOR_MORE_CORES = "postponed_for_more_cores"  # it fits, but waiting lets it end sooner
    WAITS_BEHIND_RESERVATION = "waits_behind_reservation"  # it fits only in a reservation, and may run too long for it
    WAITS_FOR_GANG = "waits_for_gang"  # it fits, but not every action of its gang does
    WAITS_BEHIND_PRIORITY = "waits_behind_priority"  # higher priorities go first
    WAITS_IN_ORDER = "waits_in_order"  # others of its task and priority go first
    WAITS_BEHIND_FAIR_SHARE = "waits_behind_fair_share"  # first in its task; tasks that had less go first
    WAITS_FOR_CAPACITY = "waits_for_capacity"  # no action is ahead of it; too little is free


class UnstartedReason(StrEnum):
    """The reasons for which a queued action does not start within a capacity forecast."""

    QUEUE_PAUSED = "queue_paused"  # its task is paused
    TASK_AT_QUOTA = "task_at_quota"  # the quota of its task never allows it
    NO_NODE_FITS = "no_node_fits"  # no schedulable node could ever run it
    ENVIRONMENT_ENDING = "environment_ending"  # its environment is about to end
    NOT_SIMULATED = "not_simulated"  # too many actions are ahead of it for the forecast
    TIME_LIMIT = "time_limit"  # the forecast reached its time limit before


class EstimateBasis(StrEnum):
    """The data that an expected duration is based on."""

    LEARNT = "learnt"  # runs of this class
    POOLED = "pooled"  # runs of similar classes
    DECLARED = "declared"  # no runs seen: the client's declaration and a prior
