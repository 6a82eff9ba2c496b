"""The parts of a request that determine its cell. A malformed value counts as absent: the cell's gateway reports it."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from arl_cell_router.routing.cell_routing import RequestFacts

__all__ = [
    "action_facts",
    "batch_facts",
    "compat_facts",
    "environment_facts",
    "gang_facts",
    "parse_id",
    "score_facts",
]

DEFAULT_TASKS = {"score": "score", "call": "call", "run": "run_code"}
"""Tasks of compatible routes that the request does not name. The task is part of the hash."""


def action_facts(action: Any, *, key: str | None, prefix: str = "") -> RequestFacts:
    """Return the facts of one action. `prefix` precedes the names of fields, such as `actions.3.`."""
    if not isinstance(action, Mapping):
        return RequestFacts(key=key)
    environment = action.get("environment")
    ids = {"environment.id": environment.get("id")} if isinstance(environment, Mapping) else {}
    return _facts(action, {f"{prefix}{name}": value for name, value in ids.items()}, key=key)


def batch_facts(actions: Sequence[Any], *, key: str | None) -> list[RequestFacts]:
    """Return the facts of each action of a batch. Actions of one key are spread by their index."""
    return [
        action_facts(action, key=f"{key}:{index}" if key is not None else None, prefix=f"actions.{index}.")
        for index, action in enumerate(actions)
    ]


def gang_facts(actions: Sequence[Any], *, key: str | None) -> RequestFacts:
    """Return the facts of a gang, which goes to one cell: that of its first trajectory."""
    each = batch_facts(actions, key=None)
    ids = {name: id for facts in each for name, id in facts.ids.items()}
    trajectory = next((facts.trajectory for facts in each if facts.trajectory is not None), None)
    return RequestFacts(ids=ids, trajectory=trajectory, key=key)


def environment_facts(body: Any, *, key: str | None) -> RequestFacts:
    """Return the facts of `POST /v1/environments`."""
    return _facts(body, {"snapshot": body.get("snapshot")}, key=key) if isinstance(body, Mapping) else RequestFacts()


def score_facts(body: Any) -> RequestFacts:
    """Return the facts of `POST /v1/scores`. A repetition may go to another cell: it computes the same scores."""
    return _facts(body, {}, key=None) if isinstance(body, Mapping) else RequestFacts()


def compat_facts(
    path: Mapping[str, str], query: Mapping[str, str], headers: Mapping[str, str], *, kind: str
) -> RequestFacts:
    """Return the facts of a compatible route, in the order in which the gateway reads them: path, query, headers.

    `kind` is `score`, `run`, or `call` (whose query belongs to the endpoint).
    """
    given = {} if kind == "call" else query

    def read(name: str) -> str | None:
        return path.get(name) or given.get(name) or headers.get(f"tangram-{name}") or None

    trajectory = read("trajectory")
    task = read("task") or DEFAULT_TASKS.get(kind, kind)
    return RequestFacts(
        trajectory=(task, trajectory) if trajectory is not None else None, key=headers.get("idempotency-key") or None
    )


def parse_id(value: Any) -> UUID | None:
    """Return the id, or None for another value."""
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _facts(body: Mapping[str, Any], ids: Mapping[str, Any], *, key: str | None) -> RequestFacts:
    parsed = {name: id for name, value in ids.items() if (id := parse_id(value)) is not None}
    task, trajectory = body.get("task"), body.get("trajectory")
    named = (task, trajectory) if isinstance(task, str) and isinstance(trajectory, str) else None
    return RequestFacts(ids=parsed, trajectory=named, key=key)
