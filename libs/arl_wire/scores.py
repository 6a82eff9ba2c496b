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
        raise ValueError(f"{', '.join(sorted(wrong))}: not allowed in chat. Messages have their own field")
    if wrong := ENGINE_ONLY_FIELDS & chat.keys():
        raise ValueError(f"{', '.join(sorted(wrong))}: not allowed; the engine's administrator sets it")
    if (choices := chat.get("n")) is not None and not (type(choices) is int and 1 <= choices <= MAX_CHOICES):
        raise ValueError(f"n: must be from 1 to {MAX_CHOICES}")
    return validate_small_json(chat)


class PromptMessage(StrictModel):
    """A message of a conversation."""

    role: _RoleName
    content: _ScoredText


class ScoreItem(StrictModel):
    """The input of one score. The kind of the service determines the allowed fields; see /v1/reward-services."""

    text: _ScoredText | None = None
    reference: _ScoredText | None = Field(
        default=None, description="Text to compare `text` with, such as a reference answer or a query"
    )
    prompt: _ScoredText | None = Field(default=None, description="Prompt that `text` answers; for a judge")
    messages: list[PromptMessage] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    chat: Annotated[dict[str, Any], AfterValidator(_check_chat_fields)] | None = Field(
        default=None,
        description="Further fields of OpenAI chat completions. If present, the engine of a judge answers `messages`"
        " instead of scoring them",
    )
    token_ids: list[_TokenId] | None = Field(
        default=None, min_length=1, max_length=MAX_TOKEN_IDS, description="Token ids of the service's own tokenizer"
    )

    top_logprobs: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOP_LOGPROBS,
        description="Number of the likeliest tokens to return for each position; for kind `logprobs`",
    )
    label_token_ids: list[_TokenId] | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Token ids whose log-probabilities as the next token are returned in `values`; for kind `logprobs`",
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
    truncated: bool = Field(default=False, description="True if the model read only the beginning of a text")
    error: ItemError | None = None
    values: list[float] | None = Field(
        default=None, description="One value for each label of a classifier, or for each of `label_token_ids`"
    )
    token_ids: list[int] | None = Field(default=None, description="Token ids to which `logprobs` belong")
    logprobs: list[float | None] | None = Field(
        default=None, description="Log-probability of each token given the tokens before it; null for the first token"
    )
    ranks: list[int | None] | None = Field(
        default=None,
        description="Rank of each token among the likeliest of its position; the likeliest has rank 1. Present if"
        " `top_logprobs` was requested",
    )
    top_token_ids: list[list[int]] | None = Field(
        default=None, description="Likeliest tokens of each position, the likeliest first; empty for the first position"
    )
    top_logprobs: list[list[float]] | None = Field(default=None, description="Log-probabilities of `top_token_ids`")
    completion: dict[str, Any] | None = Field(
        default=None, description="Answer of the engine to a chat, in the format of OpenAI"
    )
    details: dict[str, Any] | None = Field(
        default=None, description=f"Further output of the service, at most {MAX_DETAILS_BYTES >> 10} KiB"
    )
