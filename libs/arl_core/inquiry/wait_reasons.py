"""What decides over a queued action, and what its expected duration rests on: words that clients see."""

from enum import StrEnum

__all__ = ["EstimateBasis", "WaitReason"]


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
