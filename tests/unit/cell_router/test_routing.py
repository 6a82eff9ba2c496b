"""Test the rule that gives each request its cell."""

from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from arl_cell_router.routing.cell_routing import CellRouting, RequestFacts, rendezvous
from arl_cell_router.routing.request_facts import (
    action_facts,
    batch_facts,
    compat_facts,
    environment_facts,
    gang_facts,
    score_facts,
)
from arl_store.values import uuid7
from arl_wire.cells import with_cell
from arl_wire.errors import BadRequest, NotFound, ValidationFailed

ROUTING = CellRouting({1: 1.0, 2: 1.0, 3: 1.0})
OLD = UUID("01997f00-0000-7abc-bfff-0123456789ab")
NAMES = [f"s{step}-r{rollout}" for step in range(40) for rollout in range(50)]


def of(trajectory: str, routing: CellRouting = ROUTING) -> int | None:
    return routing.choose_cell(RequestFacts(trajectory=("t", trajectory)))


def test_ids_come_before_the_trajectory_and_the_key() -> None:
    facts = RequestFacts(ids={"environment.id": uuid7(3)}, trajectory=("t", "r"), key="k")
    assert ROUTING.choose_cell(facts) == 3


def test_trajectory_comes_before_the_key() -> None:
    assert {ROUTING.choose_cell(RequestFacts(trajectory=("t", "r"), key=str(key))) for key in range(20)} == {of("r")}


def test_key_places_actions_without_trajectory() -> None:
    placed = {key: ROUTING.choose_cell(RequestFacts(key=str(key))) for key in range(50)}
    assert placed == {key: ROUTING.choose_cell(RequestFacts(key=str(key))) for key in range(50)}
    assert set(placed.values()) == {1, 2, 3}


def test_request_without_facts_goes_to_any_cell() -> None:
    assert (RequestFacts().is_free, ROUTING.choose_cell(RequestFacts())) == (True, None)


def test_same_trajectory_of_another_task_has_its_own_cell() -> None:
    assert {ROUTING.choose_cell(RequestFacts(trajectory=(f"t{task}", "r"))) for task in range(30)} == {1, 2, 3}


def test_ids_of_different_cells_are_refused_with_their_fields() -> None:
    with pytest.raises(ValidationFailed) as caught:
        ROUTING.choose_cell(
            RequestFacts(ids={"actions.0.environment.id": uuid7(1), "actions.1.environment.id": uuid7(2)})
        )
    assert [each.field for each in caught.value.errors] == ["actions.0.environment.id", "actions.1.environment.id"]
    assert "cell 1" in caught.value.detail
    assert "cell 2" in caught.value.detail


@pytest.mark.parametrize("id", [with_cell(OLD, 9), OLD])
def test_id_of_no_cell_of_the_router_is_unknown_or_goes_to_the_fallback(id: UUID) -> None:
    with pytest.raises(NotFound, match="names"):
        ROUTING.cell_of_id(id, "action")
    assert CellRouting({1: 1.0, 2: 1.0}, fallback=1).cell_of_id(id, "action") == 1


@pytest.mark.parametrize("form", [str, lambda id: id.hex])
def test_generated_trajectory_names_its_cell(form: Any) -> None:
    assert [of(f"environment-{form(uuid7(cell))}") for cell in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("name", ["environment-1", f"environment-{OLD}", f"environment-{with_cell(OLD, 9)}"])
def test_similar_trajectory_is_placed_by_its_hash(name: str) -> None:
    assert of(name) == rendezvous(f"t\0{name}", {1: 1.0, 2: 1.0, 3: 1.0})


def test_cells_share_trajectories_by_weight() -> None:
    counts = Counter(of(name, CellRouting({1: 1.0, 2: 3.0})) for name in NAMES)
    assert 0.70 < counts[2] / len(NAMES) < 0.80


def test_new_cell_takes_its_share_and_moves_nothing_else() -> None:
    grown = CellRouting({1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0})
    moved = [name for name in NAMES if of(name) != of(name, grown)]
    assert {of(name, grown) for name in moved} == {4}
    assert 0.20 < len(moved) / len(NAMES) < 0.30


def test_cell_of_weight_0_takes_no_trajectory_and_keeps_its_ids() -> None:
    routing = CellRouting({1: 1.0, 2: 0.0})
    assert {of(name, routing) for name in NAMES[:200]} == {1}
    assert (routing.cell_of_id(uuid7(2), "action"), routing.open_cells) == (2, [1])


def test_placement_is_stable_across_versions() -> None:
    """A change of the hash would move every trajectory."""
    assert [of(name) for name in ("a", "b", "c", "d", "e", "f")] == [2, 1, 2, 1, 1, 3]


@pytest.mark.parametrize("value", ["", "x", "4", "-1", "01x", "1,2", pytest.param("9" * 5000, id="digits")])
def test_header_of_another_cell_is_refused(value: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ROUTING.parse_header(value)
    assert caught.value.errors[0].field == "header.Tangram-Cell"
    assert ROUTING.parse_header("2") == 2


@pytest.mark.parametrize(
    ("action", "ids", "trajectory"),
    [
        ({"task": "t", "trajectory": "r"}, {}, ("t", "r")),
        ({"task": "t", "environment": {"id": str(OLD)}}, {"environment.id": OLD}, None),
        ({"task": "t", "environment": {"id": "no id"}}, {}, None),
        ({"task": "t", "environment": None, "trajectory": 3}, {}, None),
        ({"task": ["t"], "trajectory": "r"}, {}, None),
        (["no action"], {}, None),
        (None, {}, None),
    ],
)
def test_action_facts_ignore_malformed_values(action: Any, ids: Any, trajectory: Any) -> None:
    assert action_facts(action, key="k") == RequestFacts(ids=ids, trajectory=trajectory, key="k")


def test_batch_spreads_items_of_one_key_by_their_index() -> None:
    facts = batch_facts([{"task": "t"}] * 3, key="k")
    assert [each.key for each in facts] == ["k:0", "k:1", "k:2"]


def test_gang_goes_to_the_cell_of_its_first_trajectory() -> None:
    facts = gang_facts([{"task": "t"}, {"task": "t", "trajectory": "b"}, {"task": "t", "trajectory": "c"}], key="k")
    assert facts == RequestFacts(trajectory=("t", "b"), key="k")


def test_environment_from_a_snapshot_goes_to_its_cell() -> None:
    snapshot = uuid7(2)
    facts = environment_facts({"task": "t", "trajectory": "r", "snapshot": str(snapshot)}, key=None)
    assert ROUTING.choose_cell(facts) == 2
    assert environment_facts([], key=None).is_free


def test_scores_without_trajectory_go_to_any_cell() -> None:
    assert score_facts({"task": "t", "service": "rm"}).is_free
    assert score_facts({"task": "t", "trajectory": "r"}).trajectory == ("t", "r")


@pytest.mark.parametrize(
    ("path", "query", "headers", "kind", "trajectory"),
    [
        ({"task": "p"}, {"task": "q", "trajectory": "r"}, {}, "score", ("p", "r")),
        ({}, {"trajectory": "r"}, {"tangram-trajectory": "h", "tangram-task": "x"}, "score", ("x", "r")),
        ({"trajectory": "path"}, {}, {}, "score", ("score", "path")),
        ({}, {"trajectory": "of the endpoint"}, {}, "call", None),
        ({}, {}, {"tangram-trajectory": "h"}, "call", ("call", "h")),
        ({}, {"trajectory": "r"}, {}, "run", ("run_code", "r")),
    ],
)
def test_compatible_routes_name_the_trajectory_as_the_gateway_reads_it(
    path: dict[str, str], query: dict[str, str], headers: dict[str, str], kind: str, trajectory: Any
) -> None:
    assert compat_facts(path, query, headers, kind=kind).trajectory == trajectory
