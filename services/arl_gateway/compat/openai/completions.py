"""OpenAI's completions for teachers: vLLM's `prompt_logprobs` of given tokens, without generation.

TRL's `VLLMClient.get_sequence_logprobs` (`trl/generation/vllm_client.py`) calls it to distill from a server. It sorts
the entries by `rank` and looks up each actual token.
"""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from arl_gateway.compat.blocking_score import json_response, score_and_wait
from arl_gateway.compat.openai.errors import OpenAiRoute
from arl_gateway.compat.sample_parsing import invalid_field, require_score, text_item
from arl_gateway.compat.target import resolve_target
from arl_gateway.compat.vllm import DOCUMENTED_ERRORS, TIMEOUT_S
from arl_gateway.http.dependencies import Writer
from arl_kit.app import error_responses
from arl_wire.errors import BadRequest
from arl_wire.scores import MAX_TOP_LOGPROBS, Score, ScoreItem

__all__ = ["router"]

TEACHER_KINDS = ("logprobs",)

router = APIRouter(tags=["compatibility"], route_class=OpenAiRoute)


class CompletionRequest(BaseModel):
    """A completion request. Unknown fields and `temperature` are ignored: vLLM's log-probabilities are raw, too."""

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]] = Field(min_length=1)
    prompt_logprobs: int = Field(
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Number of the likeliest tokens to return for each position, in addition to the actual token",
    )
    max_tokens: int = Field(default=1, ge=0, le=1, description="Must be 0 or 1: no tokens are generated")
    stream: bool | None = None


@router.post(
    "/v1/completions",
    operation_id="openai_completions",
    summary="Compute log-probabilities (OpenAI)",
    response_model=None,
    responses={**DOCUMENTED_ERRORS, **error_responses(BadRequest)},
)
async def completions(body: CompletionRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Return a teacher's log-probabilities of prompts in vLLM's format.

    No tokens are generated. Returns 400 if the service computes no log-probabilities.
    """
    if body.stream:
        raise invalid_field("stream", "streaming is not supported: remove the field or set it to false")
    place = await resolve_target(request, TEACHER_KINDS, model=body.model)
    items = list(_items(body, place.service.kind))
    entries = await score_and_wait(items, place, caller, request, response, within_s=TIMEOUT_S)
    choices = [_choice(entry, at) for at, entry in enumerate(entries)]
    tokens = sum(len(entry.token_ids or ()) for entry in entries)
    completion = {
        "id": f"cmpl-{uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": place.service.name,
        "choices": choices,
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
    }
    return json_response(completion, response)


def _items(body: CompletionRequest, kind: str) -> Iterator[ScoreItem]:
    more = {"top_logprobs": max(1, body.prompt_logprobs)}
    given: Any = body.prompt
    if isinstance(given, str) or isinstance(given[0], int):
        yield text_item(kind, given, field="prompt", **more)
        return
    for at, each in enumerate(given):
        yield text_item(kind, each, field=f"prompt.{at}", **more)


def _choice(entry: Score, index: int) -> dict[str, Any]:
    require_score(entry, index)
    if entry.token_ids is None or entry.top_token_ids is None:
        raise invalid_field("model", "this service computes no log-probabilities: name a service of kind `logprobs`")
    return {
        "index": index,
        "text": "",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "prompt_logprobs": [None, *_positions(entry)],
    }


def _positions(entry: Score) -> Iterator[dict[str, Any]]:
    """Yield, for each token except the first, the likeliest tokens and the actual token, by token id."""
    given = zip(entry.token_ids or (), entry.logprobs or (), entry.ranks or (), strict=True)
    likeliest = zip(entry.top_token_ids or (), entry.top_logprobs or (), strict=True)
    for (token, logprob, rank), (ids, logprobs) in islice(zip(given, likeliest, strict=True), 1, None):
        said: dict[int, tuple[float | None, int | None]] = {token: (logprob, rank)}
        said |= {id: (value, at) for at, (id, value) in enumerate(zip(ids, logprobs, strict=True), start=1)}
        yield {str(id): {"logprob": each[0], "rank": each[1], "decoded_token": None} for id, each in said.items()}
