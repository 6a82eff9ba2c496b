"""OpenAI's chat completions, for judges: `openai/resources/chat/completions.py` of openai/openai-python.

Clients are verl's generative reward models and others that bring their own prompts. Each call is an action, and the
engine's answer is returned unchanged. The official client waits 600 s and retries twice after a 5xx.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from arl_gateway.compat.blocking_score import json_response, score_and_wait
from arl_gateway.compat.openai.errors import OpenAiRoute
from arl_gateway.compat.sample_parsing import chat_item, invalid_field, parse_message
from arl_gateway.compat.target import resolve_target
from arl_gateway.compat.vllm import DOCUMENTED_ERRORS
from arl_gateway.http.dependencies import Writer
from arl_kit.app import error_responses
from arl_wire.errors import BadRequest, Unavailable
from arl_wire.scores import ENGINE_ONLY_FIELDS, MAX_CHOICES, MAX_MESSAGES, PromptMessage, Score

__all__ = ["router"]

TIMEOUT_S = 580.0
JUDGE_KINDS = ("judge",)
HANDLED_FIELDS = {"model", "messages", "stream", "stream_options"}
"""Request fields that are not passed to the engine unchanged."""

router = APIRouter(tags=["compatibility"], route_class=OpenAiRoute)


class TextPart(BaseModel):
    """A part of a message's content."""

    type: str = Field(pattern="^text$", description="Type of the part; only `text` is supported")
    text: str


class ChatMessage(BaseModel):
    """A message of a chat. Other fields than role and content are refused."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[TextPart]


class ChatRequest(BaseModel):
    """A chat request. Unknown fields are passed to the engine unchanged."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0)
    response_format: dict[str, Any] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = Field(default=None, description="Must be false or absent: streaming is not supported")


@router.post(
    "/v1/chat/completions",
    operation_id="openai_chat",
    summary="Create a chat completion (OpenAI)",
    response_model=None,
    responses={**DOCUMENTED_ERRORS, **error_responses(BadRequest)},
)
async def chat_completions(body: ChatRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Create a chat completion with the engine of a judge.

    The call blocks until the answer is complete; streaming is not supported. Errors include an `error` object that
    OpenAI's clients can read.
    """
    if body.stream:
        raise invalid_field("stream", "streaming is not supported: remove the field or set it to false")
    place = await resolve_target(request, JUDGE_KINDS, model=body.model)
    if place.service.kind not in JUDGE_KINDS:
        raise invalid_field(
            "model",
            f"{place.service.name} is of kind `{place.service.kind}` and cannot answer chats: name a service of kind"
            " `judge`",
        )
    # Fields are passed on unchanged. `chat_item` refuses a value that is nested too deeply to be serialized.
    further = {name: value for name, value in body if name not in HANDLED_FIELDS and value is not None}
    if wrong := sorted(ENGINE_ONLY_FIELDS & further.keys()):
        raise invalid_field(wrong[0], "only the engine's administrator can set this field: remove it")
    item = chat_item(_messages(body.messages), further)
    (entry,) = await score_and_wait([item], place, caller, request, response, within_s=TIMEOUT_S)
    return json_response({**_completion(entry), "model": place.service.name}, response)


def _messages(given: Sequence[ChatMessage]) -> list[PromptMessage]:
    for at, message in enumerate(given):
        if further := sorted(name for name, value in (message.model_extra or {}).items() if value is not None):
            raise invalid_field(f"messages.{at}.{further[0]}", "is not supported: a message has only a role and a text")
    return [
        parse_message(message.role, _text(message.content), field=f"messages.{at}") for at, message in enumerate(given)
    ]


def _text(content: str | Sequence[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _completion(entry: Score) -> dict[str, Any]:
    if entry.completion is not None:
        return entry.completion
    if entry.error is not None and entry.error.code == "refused":
        raise BadRequest(entry.error.message)
    what = entry.error.message if entry.error is not None else "a score instead of an answer"
    raise Unavailable(f"the judge returned {what}; try again", retry_after_s=1)
