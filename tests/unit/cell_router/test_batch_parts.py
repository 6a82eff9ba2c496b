"""Test the parts of batches and waits and their common responses."""

from typing import Any

import pytest

from arl_cell_router.merging.batch_parts import (
    can_split_batch,
    item_error,
    merge_batch,
    merge_wait,
    split_batch,
    split_wait,
)
from arl_cell_router.routing.cell_routing import CellRouting
from arl_store.values import uuid7
from arl_wire.errors import CellUnavailable, FieldError, ValidationFailed

ROUTING = CellRouting({1: 1.0, 2: 1.0})


def in_cell(cell: int) -> dict[str, Any]:
    return {"task": "t", "environment": {"id": str(uuid7(cell))}}


def a_problem(index: int, field: str = "argv") -> dict[str, Any]:
    detail = f"actions.{index}: {field} is wrong"
    return {"problem": {"detail": detail, "errors": [{"field": f"actions.{index}.{field}", "message": "is wrong"}]}}


def test_batch_is_split_by_cell_in_order() -> None:
    split = split_batch({"actions": [in_cell(2), in_cell(1), in_cell(2), {"task": "t"}]}, ROUTING, key=None)
    assert (split.parts, split.refused) == ({2: [0, 2], 1: [1], None: [3]}, {})


def test_item_of_an_unknown_cell_is_refused_alone() -> None:
    split = split_batch({"actions": [in_cell(1), in_cell(9)]}, ROUTING, key=None)
    assert (split.parts, list(split.refused)) == ({1: [0]}, [1])
    problem = item_error(split.refused[1], 1)
    assert (problem.status, problem.errors[0].field) == (404, "actions.1.environment.id")
    assert problem.detail.count("actions.1") == 1


def test_gang_is_never_split() -> None:
    gang = {"gang": True, "actions": [{"task": "t", "trajectory": name} for name in "abcdef"]}
    assert len(split_batch(gang, ROUTING, key="k").parts) == 1


def test_gang_in_environments_of_two_cells_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="different cells"):
        split_batch({"gang": True, "actions": [in_cell(1), in_cell(2)]}, ROUTING, key=None)


@pytest.mark.parametrize("body", [None, [], {}, {"actions": {}}, {"actions": []}, {"actions": [1] * 1001}])
def test_batch_that_a_gateway_refuses_is_not_split(body: Any) -> None:
    assert not can_split_batch(body)
    assert can_split_batch({"actions": [1]})


def test_results_have_the_order_and_the_indexes_of_the_request() -> None:
    parts = {1: [1, 3], 2: [0]}
    items = {1: [{"id": "b"}, a_problem(1)], 2: [{"id": "a"}]}
    merged = merge_batch(4, parts, items, {2: CellUnavailable("cell 3 does not answer", retry_after_s=2)})
    assert merged[:2] == [{"id": "a"}, {"id": "b"}]
    assert (merged[2]["problem"]["status"], merged[2]["problem"]["retry_after_s"]) == (503, 2)
    assert merged[3] == a_problem(3)


def test_index_10_is_not_taken_for_index_1() -> None:
    merged = merge_batch(
        12, {1: [0, 11]}, {1: [a_problem(0), a_problem(1)]}, dict.fromkeys(range(1, 11), CellUnavailable("x"))
    )
    assert merged[11] == a_problem(11)
    assert merge_batch(1, {1: [0]}, {1: [a_problem(10)]}, {}) == [a_problem(10)]


def test_header_errors_keep_their_field() -> None:
    error = CellUnavailable("x", errors=[FieldError(field="header.Idempotency-Key", message="m")])
    assert item_error(error, 3).errors[0].field == "header.Idempotency-Key"


def test_wait_is_split_and_repeated_ids_are_merged() -> None:
    first, second, unknown = (str(uuid7(cell)) for cell in (1, 2, 9))
    assert split_wait([first, second, first, unknown], ROUTING) == ({1: [first], 2: [second]}, [unknown])
    with pytest.raises(ValueError, match="not an id"):
        split_wait(["x"], ROUTING)


def test_ids_of_a_silent_cell_are_pending() -> None:
    answer = {"settled": [{"id": "c"}], "pending": [], "unknown": ["a"]}
    merged = merge_wait(["a", "b", "c", "d"], {1: answer}, {1: ["a", "c"], 2: ["b"]}, ["d"])
    assert merged == {"settled": [{"id": "c"}], "pending": ["b"], "unknown": ["a", "d"]}
