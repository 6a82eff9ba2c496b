"""Items to score, and their results."""

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
"""Maximum characters of all items of an action, and so of one text."""
MAX_MESSAGES = 256
MAX_TOKEN_IDS = 128 << 10
CHARACTERS_PER_TOKEN = 4
"""Characters that a token id counts as."""
MAX_TOP_LOGPROBS = 128
MAX_TOP_LOGPROB_ENTRIES = 1 << 18
"""Maximum top tokens in one entry; each takes about 20 bytes of the response."""
MAX_DETAILS_BYTES = 16 << 10
"""Maximum bytes of one entry as JSON."""
RESERVED_CHAT_FIELDS = frozenset({"messages", "model", "stream"})
"""Names that the additional fields of a chat must not use."""
ENGINE_ONLY_FIELDS = frozenset(
    {
        *("request_id", "rid", "priority", "cache_salt", "data_parallel_rank", "kv_transfer_params"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "lora_path", "chat_template", "custom_logit_processor"),
    }
)
"""Further forbidden names; they would give a client access to another client's requests or to the engine."""
TEXT_ERROR_CODES = frozenset({"empty_text", "too_long", "verifier_timeout"})
"""Codes of an `ItemError` caused by the text itself, not by the service or the reference."""
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
    """A message of a conversation."""

    role: _RoleName
    content: _ScoredText


class ScoreItem(StrictModel):
    """The input of one score. The kind of the service determines the allowed fields; see /v1/reward-services."""

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
        """Return the number of characters that count towards `MAX_CHARACTERS`."""
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
        """Return the names of the fields that are set."""
        return frozenset([name for name, value in vars(self).items() if value is not None])


class ItemError(BaseModel):
    """The reason for a missing score, such as `empty_text`, `not_finite`, `bad_reference` or `verifier_timeout`."""

    code: str
    message: str


class Score(BaseModel):
    """The result of one item: `score`, `error`, or, for a chat, `completion`.

    A score is never 0 for an item that was not computed.
    """

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
