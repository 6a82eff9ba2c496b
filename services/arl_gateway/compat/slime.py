"""slime's remote reward, and the teacher of its on-policy distillation, which uses SGLang's `/generate`.

Sources: `slime/rollout/rm_hub/__init__.py` (`--rm-type remote_rm`) and `examples/on_policy_distillation` of
THUDM/slime. The reward's client waits 120 s and tries ten times with growing pauses.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from arl_gateway.compat.blocking_score import CompatRoute, json_response, score_and_wait
from arl_gateway.compat.sample_parsing import (
    ConversationMessage,
    TrainerSample,
    conversation_messages,
    item_from_sample,
    label_text,
    parse_message,
    require_score,
    strip_end_tokens,
    text_item,
)
from arl_gateway.compat.target import resolve_target
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, Writer
from arl_kit.app import error_responses
from arl_wire.errors import FieldError, NotFound, NotScored, RewardServiceNotFound, ValidationFailed
from arl_wire.scores import Score

__all__ = ["router"]

REWARD_TIMEOUT_S = 110.0
TEACHER_TIMEOUT_S = 280.0
"""Seconds before a teacher's call is refused; aiohttp's own limit is 300 s."""
REWARD_KINDS = ("classifier", "sequence-classifier")
TEACHER_KINDS = ("logprobs",)
DOCUMENTED_ERRORS = error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound, NotScored, RewardServiceNotFound)

router = APIRouter(tags=["compatibility"], route_class=CompatRoute)


class SampleRequest(BaseModel):
    """A sample of slime: a prompt, its response and its label."""

    prompt: str | list[ConversationMessage]
    response: str
    label: Any = None


class SamplingParams(BaseModel):
    """SGLang's sampling parameters; only the number of new tokens matters."""

    max_new_tokens: int = Field(default=0, le=0, description="Must be 0: no tokens are generated")


class GenerateRequest(BaseModel):
    """The fields of SGLang's `/generate` that request log-probabilities of given tokens."""

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: SamplingParams = SamplingParams()
    return_logprob: bool = True
    logprob_start_len: int = Field(default=0, ge=-1)


@router.post(
    "/slime/reward",
    operation_id="slime_reward",
    summary="Score a sample (slime)",
    response_model=float,
    responses=DOCUMENTED_ERRORS,
)
async def slime_reward(body: SampleRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Score one sample for slime's remote reward.

    The response is a bare number. Returns 422 if the sample cannot be scored, and 503 after an infrastructure error.
    """
    place = await resolve_target(request, REWARD_KINDS)
    item = item_from_sample(place.service.kind, _parse_sample(body), field="label")
    (entry,) = await score_and_wait([item], place, caller, request, response, within_s=REWARD_TIMEOUT_S)
    return json_response(require_score(entry, 0), response)


@router.post(
    "/generate",
    operation_id="sglang_generate",
    summary="Compute log-probabilities (SGLang)",
    response_model=None,
    responses=DOCUMENTED_ERRORS,
)
async def generate(body: GenerateRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Return a teacher's log-probabilities of given tokens in SGLang's format.

    No tokens are generated. Returns 422 if the service computes no log-probabilities.
    """
    place = await resolve_target(request, TEACHER_KINDS)
    given = _sequences(body)
    items = [text_item(place.service.kind, each, field=field) for field, each in given]
    entries = await score_and_wait(items, place, caller, request, response, within_s=TEACHER_TIMEOUT_S)
    said = [_generation(entry, at, max(0, body.logprob_start_len)) for at, entry in enumerate(entries)]
    return json_response(said if _is_batch(body) else said[0], response)


def _parse_sample(body: SampleRequest) -> TrainerSample:
    label = label_text(body.label)
    if isinstance(body.prompt, str):
        return TrainerSample(prompt=body.prompt, response=body.response, label=label)
    asked = conversation_messages(body.prompt, field="prompt")
    prompt = "\n".join(message.content for message in asked)
    messages = [*asked, parse_message("assistant", strip_end_tokens(body.response), field="response")]
    return TrainerSample(prompt=prompt, response=body.response, label=label, messages=messages)


def _sequences(body: GenerateRequest) -> list[tuple[str, str | list[int]]]:
    """Return each sequence and the name of its field."""
    if (body.text is None) == (body.input_ids is None):
        message = "give exactly one of text and input_ids"
        raise ValidationFailed(message, errors=[FieldError(field="text", message=message)])
    if isinstance(body.text, str):
        return [("text", body.text)]
    if body.text is not None:
        return [(f"text.{at}", each) for at, each in enumerate(body.text)]
    ids: Any = body.input_ids
    return [(f"input_ids.{at}", each) for at, each in enumerate(ids)] if _is_batch(body) else [("input_ids", ids)]


def _is_batch(body: GenerateRequest) -> bool:
    if body.text is not None:
        return not isinstance(body.text, str)
    return bool(body.input_ids and isinstance(body.input_ids[0], list))


def _generation(entry: Score, index: int, start: int) -> dict[str, Any]:
    if entry.logprobs is None or entry.token_ids is None:
        require_score(entry, index)
        message = f"item {index}: this service computes no log-probabilities; name a service of kind `logprobs`"
        raise NotScored(message, errors=[FieldError(field="service", message=message)])
    known = [[logprob, token, None] for logprob, token in zip(entry.logprobs, entry.token_ids, strict=True)]
    meta = {
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": len(known),
        "completion_tokens": 0,
        "cached_tokens": 0,
        "input_token_logprobs": known[start:],
        "output_token_logprobs": [],
    }
    return {"text": "", "output_ids": [], "meta_info": meta}
