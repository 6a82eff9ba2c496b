"""States, outcomes and the edges between them, as data.

The trigger in Postgres and the diagram in the README are generated from `EDGES`; what is not listed
here cannot happen to a row.
"""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["EDGES", "MANAGERS", "RAN_TO_ITS_END", "Edge", "Outcome", "Role", "State"]


class State(StrEnum):
    QUEUED = "queued"  # admitted and durable; holds nothing
    GRANTED = "granted"  # the scheduler gave it amounts on a node; nothing has started
    RUNNING = "running"  # its manager committed to run it
    SETTLED = "settled"  # one outcome, for ever


class Outcome(StrEnum):
    OK = "ok"  # exit code 0
    USER_ERROR = "user_error"  # its code failed: exit code other than 0, or a signal of its own
    USER_TIMEOUT = "user_timeout"  # it ran longer than its timeout_s
    LIMIT_EXCEEDED = "limit_exceeded"  # the reason names the limit: memory, pids, disk or output
    INFRA_ERROR = "infra_error"  # ours, not its; the reason says what
    DEADLINE_IN_QUEUE = "deadline_in_queue"  # its deadline passed before it started
    CANCELLED = "cancelled"  # the client's wish was in time


RAN_TO_ITS_END = frozenset({Outcome.OK, Outcome.USER_ERROR})
"""How long these took says how long others will."""


class Role(StrEnum):
    """Who may write. Each is a role in Postgres, named after the database and this value."""

    GATEWAY = "gateway"
    ADMISSION = "admission"
    SCHEDULER = "scheduler"
    CPU = "cpu"
    GPU = "gpu"
    API = "api"


MANAGERS = frozenset({Role.CPU, Role.GPU, Role.API})

_ADMISSION = frozenset({Role.ADMISSION})
_SCHEDULER = frozenset({Role.SCHEDULER})
_RUN_OUTCOMES = frozenset(Outcome) - {Outcome.DEADLINE_IN_QUEUE}


@dataclass(frozen=True, slots=True)
class Edge:
    """One allowed change of a row. `outcomes` is empty where the new state has none."""

    old: State
    new: State
    writers: frozenset[Role]
    outcomes: frozenset[Outcome] = frozenset()
    why: str = ""


EDGES: tuple[Edge, ...] = (
    Edge(State.QUEUED, State.QUEUED, _ADMISSION, why="cancel wish"),
    Edge(State.GRANTED, State.GRANTED, _ADMISSION, why="cancel wish"),
    Edge(State.RUNNING, State.RUNNING, _ADMISSION | _SCHEDULER, why="cancel wish; resize"),
    Edge(State.QUEUED, State.GRANTED, _SCHEDULER, why="grant: the fence rises"),
    Edge(
        State.QUEUED,
        State.SETTLED,
        _SCHEDULER,
        frozenset({Outcome.DEADLINE_IN_QUEUE, Outcome.CANCELLED, Outcome.INFRA_ERROR}),
        why="deadline, cancel, environment lost",
    ),
    Edge(State.GRANTED, State.RUNNING, MANAGERS, why="start"),
    Edge(State.GRANTED, State.QUEUED, MANAGERS | _SCHEDULER, why="refused; node lost"),
    Edge(State.RUNNING, State.QUEUED, MANAGERS | _SCHEDULER, why="infra error or node lost, retry left"),
    Edge(State.GRANTED, State.SETTLED, MANAGERS, _RUN_OUTCOMES, why="cancel, set-up failed"),
    Edge(State.RUNNING, State.SETTLED, MANAGERS, _RUN_OUTCOMES, why="it ended"),
    Edge(State.GRANTED, State.SETTLED, _SCHEDULER, frozenset({Outcome.INFRA_ERROR}), why="node lost"),
    Edge(State.RUNNING, State.SETTLED, _SCHEDULER, frozenset({Outcome.INFRA_ERROR}), why="node lost, no retry left"),
)
