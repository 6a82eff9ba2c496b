"""What trainers send about one sample, as the item that the kind of a service takes; and a score's number."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from arl_kit.app import validation_failed
from arl_wire.errors import FieldError, NotScored, ValidationFailed
from arl_wire.kinds import KINDS
from arl_wire.scores import MAX_CHARACTERS, Message, Score, ScoreItem

__all__ = [
    "Sample",
    "answered_by",
    "chat",
    "conversation",
    "item_of",
    "label_of",
    "number_of",
    "pair",
    "text_item",
    "without_end",
]

OF_A_QUERY = frozenset({"relevance", "reranker"})
"""Kinds whose reference is what was asked; that of others is what is right."""
_END = re.compile(r"(?:(?:<[|｜][^<>|｜\s]{1,64}[|｜]>|</s>|<eos>|<end_of_turn>|\[EOS\])\s*)+\Z")
"""Special tokens, which OpenRLHF and slime leave in what they send. DeepSeek's have wide bars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A prompt and its response. `whole`: both, as a template joins them, where the trainer sent that."""

    prompt: str
    response: str
    label: str | None = None
    whole: str | None = None
    messages: Sequence[Message] | None = None
    """The prompt and the response as a conversation."""


def item_of(kind: str, sample: Sample, *, field: str) -> ScoreItem:
    """Raises `ValidationFailed`, naming `field`, for what the kind needs and the sample has not."""
    forms = KINDS.get(kind, ()) or (("text", "reference"), ("text",))
    response = without_end(sample.response)
    if ("prompt", "text") in forms:
        said = {"prompt": sample.prompt, "text": response, "reference": sample.label}
        return _item(field, **{name: value for name, value in said.items() if value is not None})
    reference = sample.prompt if kind in OF_A_QUERY else sample.label
    whole = sample.whole if sample.whole is not None else sample.prompt + sample.response
    if reference is not None and ("text", "reference") in forms:
        return _item(field, text=response, reference=reference)
    if sample.messages is not None and ("messages",) in forms:
        return _item(field, messages=list(sample.messages))
    if ("text",) in forms:
        return _item(field, text=whole if ("text", "reference") not in forms else response)
    what = "a label" if ("text", "reference") in forms else "tokens, which this route does not carry"
    raise _refused(f"a service of kind `{kind}` needs {what}", field)


def without_end(response: str) -> str:
    """Without the tokens that end it: they are no part of an answer."""
    return _END.sub("", response)


def label_of(given: Any) -> str | None:
    """A label may be any value of a dataset: what is no text is compared as JSON."""
    return given if given is None or isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def text_item(kind: str, text: str | Sequence[int], *, field: str, **more: Any) -> ScoreItem:
    """One text, or its tokens, for a kind that scores texts by themselves; `more`: what else the item has."""
    form = ("text",) if isinstance(text, str) else ("token_ids",)
    if (forms := KINDS.get(kind, ())) and form not in forms:
        raise _refused(f"a service of kind `{kind}` takes no {form[0]} by itself", field)
    return _item(field, text=text, **more) if isinstance(text, str) else _item(field, token_ids=list(text), **more)


def pair(kind: str, query: str, document: str, *, field: str) -> ScoreItem:
    if (forms := KINDS.get(kind, ())) and ("text", "reference") not in forms:
        raise _refused(f"a service of kind `{kind}` compares nothing", field)
    return _item(field, text=document, reference=query)


def number_of(entry: Score, at: int) -> float:
    """Raises `NotScored`: whoever wants a number gets none that was not computed."""
    if entry.score is not None:
        return entry.score
    why = f"{entry.error.code}: {entry.error.message}" if entry.error is not None else "it has no score"
    message = f"item {at} was not scored: {why}"
    raise NotScored(message, errors=[FieldError(field=f"items.{at}", message=message)])


def conversation(messages: Sequence[Message], *, field: str) -> ScoreItem:
    return _item(field, messages=list(messages))


def chat(messages: Sequence[Message], further: Mapping[str, Any]) -> ScoreItem:
    """To be answered. Raises `ValidationFailed` for what no item can have."""
    return _item("messages", messages=list(messages), chat=dict(further))


def answered_by(role: str, content: str, *, field: str) -> Message:
    try:
        return Message(role=role, content=content)
    except ValidationError as error:
        raise _misread(error, field) from None


def _item(field: str, **given: Any) -> ScoreItem:
    """Raises `ValidationFailed` for what no item can have, as a text that is too long."""
    try:
        item = ScoreItem(**given)
    except ValidationError as error:
        raise _misread(error, field) from None
    if item.characters > MAX_CHARACTERS:
        raise _refused(f"has more than {MAX_CHARACTERS} characters", field)
    return item


def _misread(error: ValidationError, field: str) -> ValidationFailed:
    wrong: list[Any] = error.errors(include_url=False, include_input=False)
    return validation_failed([{**each, "loc": (field,)} for each in wrong])


def _refused(message: str, field: str) -> ValidationFailed:
    return ValidationFailed(f"{field}: {message}", errors=[FieldError(field=field, message=message)])
