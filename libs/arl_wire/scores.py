"""What is scored, and what comes back for each item."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from arl_wire.validation import StrictModel, validate_no_nul, validate_small_json

__all__ = [
    "ENGINE_ONLY_FIELDS",
    "MAX_CHARACTERS",
    "MAX_CHOICES",
    "MAX_DETAILS_BYTES",
    "MAX_ITEMS",
    "MAX_MESSAGES",
    "MAX_TOKEN_IDS",
    "MAX_TOP_LOGPROBS",
    "MAX_TOP_LOGPROB_ENTRIES",
    "TEXT_ERROR_CODES",
    "ItemError",
    "PromptMessage",
    "Score",
    "ScoreItem",
    "ServiceName",
]

MAX_ITEMS = 256
MAX_CHARACTERS = 1 << 20
"""In all items of one action together, and so of one text."""
MAX_MESSAGES = 256
MAX_TOKEN_IDS = 128 << 10
CHARACTERS_PER_TOKEN = 4
"""That a token id counts for."""
MAX_TOP_LOGPROBS = 128
MAX_TOP_LOGPROB_ENTRIES = 1 << 18
"""Likeliest tokens in one entry, of which an answer has some 20 bytes each."""
MAX_DETAILS_BYTES = 16 << 10
"""Bytes, as JSON, of one entry."""
RESERVED_CHAT_FIELDS = frozenset({"messages", "model", "stream"})
"""What a chat's further fields can't be."""
ENGINE_ONLY_FIELDS = frozenset(
    {
        *("request_id", "rid", "priority", "cache_salt", "data_parallel_rank", "kv_transfer_params"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "lora_path", "chat_template", "custom_logit_processor"),
    }
)
"""Nor these: by them one client of an engine would reach another's requests, or the engine itself."""
TEXT_ERROR_CODES = frozenset({"empty_text", "too_long", "verifier_timeout"})
"""Codes of an `ItemError` that say something about the text, and nothing about us or about what it is compared with."""
MAX_CHOICES = 64

ServiceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
_ScoredText = Annotated[str, StringConstraints(max_length=MAX_CHARACTERS), AfterValidator(validate_no_nul)]
_RoleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
_TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _check_chat_fields(chat: dict[str, Any]) -> dict[str, Any]:
    if wrong := RESERVED_CHAT_FIELDS & chat.keys():
        raise ValueError(f"{', '.join(sorted(wrong))}: not given here")
    if wrong := ENGINE_ONLY_FIELDS & chat.keys():
        raise ValueError(f"{', '.join(sorted(wrong))}: the engine's own, and no client's to set")
    if (choices := chat.get("n")) is not None and not (type(choices) is int and 1 <= choices <= MAX_CHOICES):
        raise ValueError(f"n: from 1 to {MAX_CHOICES}")
    return validate_small_json(chat)


class PromptMessage(StrictModel):
    """One turn of a conversation."""

    role: _RoleName
    content: _ScoredText


class ScoreItem(StrictModel):
    """What one score is about. Which of these a service takes is a matter of its kind; see /v1/reward-services."""

    text: _ScoredText | None = None
    reference: _ScoredText | None = Field(default=None, description="What `text` is compared with: an answer, a query")
    prompt: _ScoredText | None = Field(default=None, description="What `text` answers, for a judge")
    messages: list[PromptMessage] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    chat: Annotated[dict[str, Any], AfterValidator(_check_chat_fields)] | None = Field(
        default=None,
        description="`messages` are to be answered by a judge's engine and not scored, with these fields of OpenAI's"
        " chat completions besides",
    )
    token_ids: list[_TokenId] | None = Field(
        default=None, min_length=1, max_length=MAX_TOKEN_IDS, description="Of the service's own tokenizer"
    )

    top_logprobs: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOP_LOGPROBS,
        description="Of `logprobs`: so many of the likeliest tokens of each position, too",
    )
    label_token_ids: list[_TokenId] | None = Field(
        default=None, min_length=1, max_length=1024, description="Of `logprobs`: `values` are these as the next token's"
    )

    @property
    def characters(self) -> int:
        """What it counts for in `MAX_CHARACTERS`."""
        found = len(self.text or "") + len(self.reference or "") + len(self.prompt or "")
        if self.messages is not None:
            found += sum(len(each.content) for each in self.messages)
        if self.chat:
            found += len(json.dumps(self.chat))
        if self.top_logprobs:
            found += min(MAX_TOP_LOGPROB_ENTRIES, self.top_logprobs * len(self.token_ids or self.text or ()))
        return found + CHARACTERS_PER_TOKEN * len(self.token_ids or ())

    @property
    def given_fields(self) -> frozenset[str]:
        """The names of what it has."""
        return frozenset([name for name, value in vars(self).items() if value is not None])


class ItemError(BaseModel):
    """Why there is no score of one item, as `empty_text`, `not_finite`, `bad_reference` or `verifier_timeout`."""

    code: str
    message: str


class Score(BaseModel):
    """Of one item: `score`, or `error`, or, of a chat, `completion`. Never a 0 for something that was not computed."""

    score: float | None = None
    truncated: bool = Field(default=False, description="The model read only the beginning of a text")
    error: ItemError | None = None
    values: list[float] | None = Field(
        default=None, description="Of a classifier with several labels, or of `label_token_ids`: one for each"
    )
    token_ids: list[int] | None = Field(default=None, description="What `logprobs` are of")
    logprobs: list[float | None] | None = Field(
        default=None, description="Of each token, given those before it; null for the first, which has none"
    )
    ranks: list[int | None] | None = Field(
        default=None, description="With `top_logprobs`: which of the likeliest each token is, the first being 1"
    )
    top_token_ids: list[list[int]] | None = Field(
        default=None, description="The likeliest tokens of each position, the likeliest first; none for the first one"
    )
    top_logprobs: list[list[float]] | None = Field(default=None, description="Of `top_token_ids`")
    completion: dict[str, Any] | None = Field(
        default=None, description="Of a chat: the engine's answer, in OpenAI's form"
    )
    details: dict[str, Any] | None = Field(
        default=None, description=f"What else the service says, at most {MAX_DETAILS_BYTES >> 10} KiB"
    )
