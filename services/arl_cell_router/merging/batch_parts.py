"""The parts of a batch or of a wait, one for each cell, and their common response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from arl_cell_router.routing.cell_routing import CellRouting
from arl_cell_router.routing.request_facts import batch_facts, gang_facts, parse_id
from arl_wire.actions.batches import BatchItemResult
from arl_wire.errors import FieldError, ProblemDetails, TangramError

__all__ = ["BatchSplit", "can_split_batch", "item_error", "merge_batch", "merge_wait", "split_batch", "split_wait"]

MAX_ITEMS = 1000


@dataclass(slots=True)
class BatchSplit:
    """The indexes of the items by the number of their cell, and the items that belong to no cell."""

    parts: dict[int | None, list[int]] = field(default_factory=dict)
    """None: any cell may take the items."""
    refused: dict[int, TangramError] = field(default_factory=dict)


def can_split_batch(body: Any) -> bool:
    """Return False for a body that a gateway refuses as a whole. It goes to any cell, which says why."""
    actions = body.get("actions") if isinstance(body, Mapping) else None
    return isinstance(actions, list) and 1 <= len(actions) <= MAX_ITEMS


def split_batch(body: Mapping[str, Any], routing: CellRouting, *, key: str | None) -> BatchSplit:
    """Split the items of a batch by cell. A gang stays whole.

    Raises the errors of `CellRouting.choose_cell` for a gang; an error of another item is in `refused`.
    """
    actions: Sequence[Any] = body["actions"]
    if body.get("gang"):
        return BatchSplit({routing.choose_cell(gang_facts(actions, key=key)): list(range(len(actions)))})
    split = BatchSplit()
    for index, facts in enumerate(batch_facts(actions, key=key)):
        try:
            split.parts.setdefault(routing.choose_cell(facts), []).append(index)
        except TangramError as error:
            split.refused[index] = error
    return split


def merge_batch(
    count: int,
    parts: Mapping[int, Sequence[int]],
    items: Mapping[int, Sequence[Any]],
    refused: Mapping[int, TangramError],
) -> list[Any]:
    """Return the results of all items in the order of the request.

    Args:
        count: Number of items of the request.
        parts: Indexes of the items that each cell got.
        items: Results of each cell, or fewer than `parts` if a cell failed as a whole and `refused` has its items.
        refused: Errors of single items, by their index.
    """
    merged: list[Any] = [None] * count
    for index, error in refused.items():
        merged[index] = BatchItemResult(problem=item_error(error, index)).model_dump(mode="json", exclude_none=True)
    for cell, results in items.items():
        for local, (index, result) in enumerate(zip(parts[cell], results, strict=True)):
            merged[index] = _renumbered(result, local, index)
    return merged


def item_error(error: TangramError, index: int) -> ProblemDetails:
    """Return the problem of one item. Errors that already name their field keep it."""
    problem = error.to_problem()
    prefix = f"actions.{index}"
    fields = [
        each
        if each.field.startswith((prefix, "header."))
        else FieldError(field=f"{prefix}.{each.field}", message=each.message)
        for each in problem.errors
    ]
    detail = problem.detail if problem.detail.startswith(f"{prefix}.") else f"{prefix}: {problem.detail}"
    return problem.model_copy(update={"errors": fields, "detail": detail})


def split_wait(ids: Sequence[Any], routing: CellRouting) -> tuple[dict[int, list[str]], list[str]]:
    """Return the ids by the number of their cell, and the ids of no cell, which are unknown. Repeated ids are merged.

    Raises ValueError if a value is no id.
    """
    parts: dict[int, list[str]] = {}
    unknown: list[str] = []
    for id in dict.fromkeys(map(_require_id, ids)):
        try:
            parts.setdefault(routing.cell_of_id(id, "ids"), []).append(str(id))
        except TangramError:
            unknown.append(str(id))
    return parts, unknown


def merge_wait(
    order: Sequence[str],
    answers: Mapping[int, Mapping[str, Any]],
    parts: Mapping[int, Sequence[str]],
    unknown: Sequence[str],
) -> dict[str, Any]:
    """Return the common response of a wait. The ids of a cell without an answer are pending."""
    position = {id: index for index, id in enumerate(order)}
    merged: dict[str, list[Any]] = {"settled": [], "pending": [], "unknown": list(unknown)}
    for cell, ids in parts.items():
        answer = answers.get(cell, {"pending": ids})
        for name, found in merged.items():
            found.extend(answer.get(name, ()))
    merged["settled"].sort(key=lambda action: position[action["id"]])
    for name in ("pending", "unknown"):
        merged[name].sort(key=lambda id: position[id])
    return merged


def _require_id(value: Any) -> UUID:
    id = parse_id(value)
    if id is None:
        raise ValueError("not an id")
    return id


def _renumbered(result: Any, local: int, index: int) -> Any:
    """Return a result with the index of the whole batch in the field names of its problem."""
    problem = result.get("problem") if isinstance(result, Mapping) else None
    if not problem or local == index:
        return result
    old, new = f"actions.{local}", f"actions.{index}"
    errors = [{**each, "field": _replaced(each["field"], old, new)} for each in problem.get("errors", ())]
    return {**result, "problem": {**problem, "errors": errors, "detail": _replaced(problem["detail"], old, new)}}


def _replaced(text: str, old: str, new: str) -> str:
    is_named = text.startswith(old) and not text[len(old) : len(old) + 1].isdigit()
    return new + text[len(old) :] if is_named else text
