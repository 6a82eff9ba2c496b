"""Results of submissions whose Idempotency-Key is known."""

from collections.abc import Mapping
from uuid import UUID

from arl_admission.normalise import NewAction
from arl_store.tx import Row
from arl_wire.errors import FieldError, IdempotencyKeyReused, RewardServiceNotFound, Unavailable
from arl_wire.internal.admission import AdmitItem, AdmitItemResult

__all__ = ["item_result", "key_of", "known_gang_result"]


def key_of(item: AdmitItem) -> tuple[int, str | None]:
    """Return the project and the key of a submission."""
    return item.project_id, item.key


def item_result(
    item: AdmitItem,
    new: NewAction | None,
    *,
    inserted: Mapping[UUID, Row],
    bound: Mapping[tuple[int, str], tuple[str, UUID]],
) -> AdmitItemResult | Exception:
    """Return the result of a submission after the insert: its new action, the action of its key, or an error."""
    if new is not None and new.id in inserted:
        return AdmitItemResult(id=new.id, created=True)
    known = bound.get((item.project_id, item.key)) if item.key is not None else None
    if known is None and item.key is None and new is not None and new.service is not None:
        message = f"reward service {new.service!r} was removed during the submission"
        return RewardServiceNotFound(message, errors=[FieldError(field="service", message=message)])
    if known is None:
        what = "this Idempotency-Key expired or its reward service was removed during the submission"
        return Unavailable(f"{what}; try again", retry_after_s=1)
    body_hash, id = known
    if body_hash == (item.body_hash or ""):
        return AdmitItemResult(id=id)
    return _key_reused_error()


def _key_reused_error() -> IdempotencyKeyReused:
    message = "this Idempotency-Key was used with another body: use a new key for a new action"
    return IdempotencyKeyReused(message, errors=[FieldError(field="header.Idempotency-Key", message=message)])


def known_gang_result(item: AdmitItem, bound: Mapping[tuple[int, str], tuple[str, UUID]]) -> AdmitItemResult:
    """Return the action of a gang member whose key is bound. Raises `IdempotencyKeyReused` for another body."""
    body_hash, id = bound.get((item.project_id, item.key or ""), (None, None))
    if id is None or body_hash != item.body_hash:
        raise _key_reused_error()
    return AdmitItemResult(id=id)
