from typing import Any
from uuid import UUID

import pytest

from arl_core.control.reclaim import ReclaimDecision, reclaim
from arl_core.domain.states import ActionState
from support.builders import EPOCH, a_held_row, a_lease, numbered

TTL_S = 10.0
HOME = numbered(100)
LAPSED = {"silent_s": 11.0}
REPLACED = {"epoch": UUID(int=8)}
DRAINED = {"silent_s": 1.0, "drained": True}
ALIVE: dict[str, Any] = {"silent_s": 9.0}


CASES: list[tuple[str, dict[str, Any], dict[str, Any], tuple[bool, bool, str] | None]] = [
    ("a live node keeps its running actions", {}, ALIVE, None),
    ("without retries a lost run is an infra error", {}, LAPSED, (False, True, "node_lost")),
    ("an action with a retry left is queued again", {"retries": 1}, LAPSED, (True, True, "node_lost")),
    ("retries are bounded", {"retries": 1, "failures": 1}, LAPSED, (False, True, "node_lost")),
    ("a new epoch means that the old node is lost", {}, REPLACED, (False, True, "node_lost")),
    ("an attempt that never started is no failure", {"state": ActionState.GRANTED}, LAPSED, (True, False, "node_lost")),
    ("at the drain deadline running actions are queued again", {"retries": 1}, DRAINED, (True, True, "node_drained")),
    ("at the drain deadline environments are lost", {"environment": HOME}, DRAINED, (False, True, "environment_lost")),
    (
        "an environment that was never created is not lost",
        {"environment": HOME, "environment_made": False, "state": ActionState.GRANTED},
        DRAINED,
        (True, False, "node_drained"),
    ),
    ("an action in an environment may still run: wait for the node", {"environment": HOME}, LAPSED, None),
    (
        "a new epoch means that the environment is lost",
        {"environment": HOME},
        REPLACED,
        (False, True, "environment_lost"),
    ),
    (
        "a retry in an empty environment would be a false user error",
        {"environment": HOME, "retries": 3},
        REPLACED,
        (False, True, "environment_lost"),
    ),
    (
        "a lost environment fails its running action",
        {"environment": HOME, "environment_live": False},
        ALIVE,
        (False, True, "environment_lost"),
    ),
    (
        "a lapsed lease loses the grant but not the environment",
        {"environment": HOME, "state": ActionState.GRANTED},
        LAPSED,
        (True, False, "node_lost"),
    ),
]


@pytest.mark.parametrize(("row", "lease", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_reclaim_decision_follows_lease_and_environment_state(
    row: dict[str, Any], lease: dict[str, Any], expected: tuple[bool, bool, str] | None
) -> None:
    held = a_held_row(**row)
    verdicts = reclaim([held], {1: a_lease(**lease)}, ttl_s=TTL_S)
    assert verdicts == (() if expected is None else (ReclaimDecision(held.fence, held.state, *expected),))


def test_node_unknown_to_postgres_is_lost() -> None:
    (verdict,) = reclaim([a_held_row(node_epoch=EPOCH)], {}, ttl_s=TTL_S)
    assert verdict.reason == "node_lost"
