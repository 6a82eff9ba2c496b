"""Walltime: an action starts on a node only if its time limit passes before the node ends.

A batch system ends the job of a node at a known time. An action that is still running then would be lost, so it must
not start there.
"""

import math

from arl_core.domain.model import ActionClass, NodeResources

__all__ = ["END_GRACE_S", "can_end_on", "is_suited", "rounded_time_limit_s", "time_left_s"]

END_GRACE_S = 15.0
"""Seconds between the time limit of an action and the end of its node: start-up, clean-up and the report."""
_STEPS = 8
"""Time limits between two powers of two seconds."""


def rounded_time_limit_s(timeout_s: float) -> float:
    """Return the time limit, in seconds, with which an action is placed: at least `timeout_s`, up to an eighth more.

    Few different limits remain, so that actions with similar timeouts are scheduled as a group.
    """
    if timeout_s <= 1.0:
        return 1.0
    step = 2.0 ** (math.frexp(timeout_s)[1] - 1) / _STEPS
    return math.ceil(timeout_s / step) * step


def time_left_s(ends_at: float | None, now: float) -> float:
    """Return the seconds for which actions may still run on a node; infinity if it has no known end.

    Args:
        ends_at: End of the node in seconds of the database's clock.
        now: Time of the same clock.
    """
    return math.inf if ends_at is None else ends_at - END_GRACE_S - now


def can_end_on(cls: ActionClass, node: NodeResources) -> bool:
    """Return True if an action that starts now reaches its time limit before the node ends."""
    return cls.time_limit_s <= node.time_left_s


def is_suited(cls: ActionClass, node: NodeResources) -> bool:
    """Return True if the node may start actions of the class now, regardless of amounts.

    It has the shape, it enforces the requirements, and the time until its end suffices.
    """
    return node.shape is cls.shape and cls.requires <= node.enforced and cls.time_limit_s <= node.time_left_s
