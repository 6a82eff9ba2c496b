"""The kinds of reward services, and what an item of each has to have."""

from collections.abc import Mapping, Sequence

from arl_wire.errors import FieldError, ValidationFailed
from arl_wire.scores import ScoreItem

__all__ = ["CHAT_FORM", "FORMS_BY_KIND", "UNBATCHED_KINDS", "VERIFIERS", "describe_forms", "item_form_error"]

ItemForm = tuple[str, ...]
"""Fields that go together."""

_PAIR: ItemForm = ("text", "reference")
_TEXT: ItemForm = ("text",)
_TEXTS: tuple[ItemForm, ...] = (_TEXT, ("messages",), ("token_ids",))

VERIFIERS: Mapping[str, tuple[ItemForm, ...]] = {
    "math": (_PAIR,),
    "exact": (_PAIR,),
    "regex": (_PAIR,),
    "json": (_TEXT, _PAIR),
}
"""Kinds that run as programs in a sandbox, and on no device."""

_NEXT_TOKEN_FORMS: tuple[ItemForm, ...] = tuple(
    (given, more) for given in ("token_ids", "text") for more in ("top_logprobs", "label_token_ids")
)
CHAT_FORM: ItemForm = ("messages", "chat")
_JUDGE_FORMS: tuple[ItemForm, ...] = (_TEXT, _PAIR, ("prompt", "text"), ("prompt", "text", "reference"))

UNBATCHED_KINDS = frozenset({*VERIFIERS, "judge"})
"""Kinds whose items don't wait for each other's company: what computes them does many beside each other."""

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
"""The forms that an item of each kind may have; any, where there is none."""


def item_form_error(kind: str, items: Sequence[ScoreItem]) -> ValidationFailed | None:
    """What the first item that the kind does not take has too much or too little of."""
    forms = FORMS_BY_KIND.get(kind, ())
    taken = frozenset(map(frozenset, forms))
    for at, item in enumerate(items if forms else ()):
        given = item.given_fields
        if given in taken:
            continue
        field = _mismatched_field(given, forms)
        beside = ", ".join(sorted(given - {field}))
        what = f"has no {field}" if field not in given else f"has {field}" + (f" beside {beside}" if beside else "")
        message = f"item {at} {what}; a service of kind `{kind}` takes {describe_forms(kind)}"
        return ValidationFailed(message, errors=[FieldError(field=f"items.{at}.{field}", message=message)])
    return None


def describe_forms(kind: str) -> str:
    """As `text, or text and reference`."""
    return ", or ".join(" and ".join(form) for form in FORMS_BY_KIND.get(kind, ())) or "anything"


def _mismatched_field(given: frozenset[str], forms: Sequence[ItemForm]) -> str:
    """What is missing of the form that is nearest, or else what is too much."""
    nearest = max(forms, key=lambda form: len(given & set(form)) - len(given ^ set(form)))
    missing = [name for name in nearest if name not in given]
    return missing[0] if missing else min(given - set(nearest))
