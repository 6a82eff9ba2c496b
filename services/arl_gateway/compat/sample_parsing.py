"""Conversion of trainers' samples to items for each kind of service, and of scores to numbers."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from arl_kit.app import validation_failed
from arl_wire.errors import FieldError, NotScored, ValidationFailed
from arl_wire.reward_services.kinds import FORMS_BY_KIND
from arl_wire.scores import MAX_CHARACTERS, PromptMessage, Score, ScoreItem

__all__ = [
    "ConversationMessage",
    "TrainerSample",
    "chat_item",
    "content_text",
    "conversation_item",
    "conversation_messages",
    "invalid_field",
    "item_from_sample",
    "label_text",
    "pair_item",
    "parse_message",
    "require_score",
    "strip_end_tokens",
    "text_item",
]

QUERY_KINDS = frozenset({"relevance", "reranker"})
"""Kinds whose reference is the prompt. For other kinds it is the label."""
TEXT_FIELDS = ("text", "refusal")
"""Fields of a content part that contain the model's text."""
_END_TOKEN = re.compile(r"(?:<[|｜][^<>|｜\s]{1,64}[|｜]>|</s>|<eos>|<end_of_turn>|\[EOS\])\Z")
"""A special token at the end, which OpenRLHF and slime leave in responses. DeepSeek's contain full-width bars."""
MAX_END_TOKEN_CHARACTERS = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSample:
    """A prompt and its response. `full_text` is both, joined by a template, if the trainer sent it."""

    prompt: str
    response: str
    label: str | None = None
    full_text: str | None = None
    messages: Sequence[PromptMessage] | None = None
    """The prompt and the response as a conversation."""


class ConversationMessage(BaseModel):
    """A message in OpenAI's format. `content` is a text, null, or a list of parts; further fields are ignored."""

    role: str
    content: Any = None


def conversation_messages(messages: Sequence[ConversationMessage], *, field: str) -> list[PromptMessage]:
    """Return the messages with their texts. Raises `ValidationFailed` for invalid values."""
    return [
        parse_message(each.role, content_text(each.content, field=f"{field}.{at}.content"), field=f"{field}.{at}")
        for at, each in enumerate(messages)
    ]


def item_from_sample(kind: str, sample: TrainerSample, *, field: str) -> ScoreItem:
    """Convert a sample to an item. Raises `ValidationFailed` for `field` if the kind needs a part that is missing."""
    forms = FORMS_BY_KIND.get(kind, ()) or (("text", "reference"), ("text",))
    response = strip_end_tokens(sample.response)
    if ("prompt", "text") in forms:
        said = {"prompt": sample.prompt, "text": response, "reference": sample.label}
        return _build_item(field, **{name: value for name, value in said.items() if value is not None})
    reference = sample.prompt if kind in QUERY_KINDS else sample.label
    whole = sample.full_text if sample.full_text is not None else sample.prompt + sample.response
    if reference is not None and ("text", "reference") in forms:
        return _build_item(field, text=response, reference=reference)
    if sample.messages is not None and ("messages",) in forms:
        return _build_item(field, messages=list(sample.messages))
    if ("text",) in forms:
        return _build_item(field, text=whole if ("text", "reference") not in forms else response)
    what = "a label" if ("text", "reference") in forms else "tokens, which this route does not accept"
    raise invalid_field(field, f"a service of kind `{kind}` needs {what}")


def strip_end_tokens(response: str) -> str:
    """Remove the special tokens at the end; they are not part of the answer."""
    end = kept = len(response)
    while True:
        while end > 0 and response[end - 1].isspace():
            end -= 1
        found = _END_TOKEN.search(response, max(0, end - MAX_END_TOKEN_CHARACTERS), end)
        if found is None:
            return response[:kept]
        end = kept = found.start()


def label_text(given: Any) -> str | None:
    """Return a label as text. A label can be any value of a dataset; values other than text become JSON."""
    return given if given is None or isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def text_item(kind: str, text: str | Sequence[int], *, field: str, **extra: Any) -> ScoreItem:
    """Build an item of one text, or its tokens, for kinds that score single texts. `extra` adds fields to the item."""
    form = ("text",) if isinstance(text, str) else ("token_ids",)
    if (forms := FORMS_BY_KIND.get(kind, ())) and form not in forms:
        raise invalid_field(field, f"a service of kind `{kind}` does not accept {form[0]} alone")
    return (
        _build_item(field, text=text, **extra)
        if isinstance(text, str)
        else _build_item(field, token_ids=list(text), **extra)
    )


def pair_item(kind: str, query: str, document: str, *, field: str) -> ScoreItem:
    """Build an item of a query and a document. Raises `ValidationFailed` if the kind does not compare texts."""
    if (forms := FORMS_BY_KIND.get(kind, ())) and ("text", "reference") not in forms:
        raise invalid_field(field, f"a service of kind `{kind}` does not compare texts")
    return _build_item(field, text=document, reference=query)


def require_score(entry: Score, index: int) -> float:
    """Return the entry's score. Raises `NotScored` if there is none; a number is never made up."""
    if entry.score is not None:
        return entry.score
    why = f"{entry.error.code}: {entry.error.message}" if entry.error is not None else "the service returned no score"
    message = f"item {index} was not scored: {why}"
    raise NotScored(message, errors=[FieldError(field=f"items.{index}", message=message)])


def conversation_item(messages: Sequence[PromptMessage], *, field: str) -> ScoreItem:
    """Build an item of a conversation. Raises `ValidationFailed` for invalid messages."""
    return _build_item(field, messages=list(messages))


def chat_item(messages: Sequence[PromptMessage], parameters: Mapping[str, Any]) -> ScoreItem:
    """Build an item for a judge to answer. Raises `ValidationFailed` for invalid values."""
    return _build_item("messages", messages=list(messages), chat=dict(parameters))


def parse_message(role: str, content: str, *, field: str) -> PromptMessage:
    """Build a message. Raises `ValidationFailed` for `field` if a value is invalid."""
    try:
        return PromptMessage(role=role, content=content)
    except ValidationError as error:
        raise _invalid_item(error, field) from None


def _build_item(field: str, **given: Any) -> ScoreItem:
    """Build an item. Raises `ValidationFailed` for invalid values such as a text that is too long."""
    try:
        item = ScoreItem(**given)
    except ValidationError as error:
        raise _invalid_item(error, field) from None
    if item.characters > MAX_CHARACTERS:
        raise invalid_field(field, f"must have at most {MAX_CHARACTERS} characters")
    return item


def _invalid_item(error: ValidationError, field: str) -> ValidationFailed:
    wrong: list[Any] = error.errors(include_url=False, include_input=False)
    return validation_failed([{**each, "loc": (field,)} for each in wrong])


def content_text(content: Any, *, field: str) -> str:
    """Return the text of a message's content, which may be null, a text, or parts in OpenAI's formats.

    Parts without text, such as images, contribute nothing. Raises `ValidationFailed` for another content.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid_field(field, "must be a text, null, or a list of parts with `text`")
    return "".join(_part_text(part, f"{field}.{at}") for at, part in enumerate(content))


def _part_text(part: Any, field: str) -> str:
    if isinstance(part, str):
        return part
    text = next((part[name] for name in TEXT_FIELDS if name in part), None) if isinstance(part, dict) else part
    if not isinstance(part, dict) or not isinstance(text, str | None) or (text is None and "type" not in part):
        raise invalid_field(field, "must be a text, or an object with `type` and `text`")
    return text or ""


def invalid_field(field: str, message: str) -> ValidationFailed:
    """Return a validation error of one field."""
    return ValidationFailed(f"{field}: {message}", errors=[FieldError(field=field, message=message)])
