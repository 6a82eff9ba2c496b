"""Kinds of reward services, and the fields that their items need."""

from collections.abc import Mapping, Sequence

from arl_wire.errors import FieldError, ValidationFailed
from arl_wire.scores import ScoreItem

__all__ = ["CHAT_FORM", "FORMS_BY_KIND", "UNBATCHED_KINDS", "VERIFIERS", "describe_forms", "item_form_error"]

ItemForm = tuple[str, ...]
"""Fields that an item has at the same time."""

_PAIR: ItemForm = ("text", "reference")
_TEXT: ItemForm = ("text",)
_TEXTS: tuple[ItemForm, ...] = (_TEXT, ("messages",), ("token_ids",))

VERIFIERS: Mapping[str, tuple[ItemForm, ...]] = {
    "math": (_PAIR,),
    "exact": (_PAIR,),
    "regex": (_PAIR,),
    "json": (_TEXT, _PAIR),
}
"""Kinds that run as programs in a sandbox, without a device."""

_NEXT_TOKEN_FORMS: tuple[ItemForm, ...] = tuple(
    (given, more) for given in ("token_ids", "text") for more in ("top_logprobs", "label_token_ids")
)
CHAT_FORM: ItemForm = ("messages", "chat")
_JUDGE_FORMS: tuple[ItemForm, ...] = (_TEXT, _PAIR, ("prompt", "text"), ("prompt", "text", "reference"))

UNBATCHED_KINDS = frozenset({*VERIFIERS, "judge"})
"""Kinds without batching across actions, because their backend computes many items concurrently."""

FORMS_BY_KIND: Mapping[str, tuple[ItemForm, ...]] = {
    "similarity": (_PAIR,),
    "relevance": (_PAIR,),
    "classifier": (_TEXT,),
    "sequence-classifier": _TEXTS,
    "reranker": (_PAIR,),
    "logprobs": (("token_ids",), _TEXT, *_NEXT_TOKEN_FORMS),
    "judge": (*_JUDGE_FORMS, CHAT_FORM),
    "python": (),
    **VERIFIERS,
}
"""Allowed forms of items by kind; an empty tuple allows any form."""


def item_form_error(kind: str, items: Sequence[ScoreItem]) -> ValidationFailed | None:
    """Return an error for the first item with a missing or extra field; None if all items fit the kind."""
    forms = FORMS_BY_KIND.get(kind, ())
    taken = frozenset(map(frozenset, forms))
    for at, item in enumerate(items if forms else ()):
        given = item.given_fields
        if given in taken:
            continue
        field = _mismatched_field(given, forms)
        beside = ", ".join(sorted(given - {field}))
        what = (
            f"has no {field}" if field not in given else f"has {field}" + (f" together with {beside}" if beside else "")
        )
        message = f"item {at} {what}: a service of kind `{kind}` takes {describe_forms(kind)}"
        return ValidationFailed(message, errors=[FieldError(field=f"items.{at}.{field}", message=message)])
    return None


def describe_forms(kind: str) -> str:
    """Return the forms as text, such as `text, or text and reference`."""
    return ", or ".join(" and ".join(form) for form in FORMS_BY_KIND.get(kind, ())) or "anything"


def _mismatched_field(given: frozenset[str], forms: Sequence[ItemForm]) -> str:
    """Return the missing field of the closest form, or else an extra field."""
    nearest = max(forms, key=lambda form: len(given & set(form)) - len(given ^ set(form)))
    missing = [name for name in nearest if name not in given]
    return missing[0] if missing else min(given - set(nearest))
