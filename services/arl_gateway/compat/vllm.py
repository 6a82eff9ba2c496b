"""vLLM's pooling API and SGLang's embeddings, as verl's reward loop and others call them.

`verl/experimental/reward_loop/reward_loop.py` of verl-project/verl reads `data[-1].probs[-1]` of `/classify` and
`data[-1].embedding[-1]` of `/v1/embeddings`. It waits without a timeout, retries after a 5xx and fails on a 4xx.
Unknown fields are ignored, like in vLLM. An option that would change a score is refused (`scoring_options`).
"""

import math
import sys
import time
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from pydantic import Field

from arl_gateway.compat.blocking_score import CompatRoute, json_response, score_and_wait
from arl_gateway.compat.sample_parsing import (
    ConversationMessage,
    conversation_item,
    conversation_messages,
    require_score,
    text_item,
)
from arl_gateway.compat.scoring_options import ScoringOptions, refuse_unsupported_options
from arl_gateway.compat.target import RewardTarget, resolve_target
from arl_gateway.http.auth import Caller
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, Writer
from arl_gateway.reward_services.service_directory import ServiceEntry
from arl_kit.app import error_responses
from arl_wire.errors import FieldError, NotFound, NotScored, RewardServiceNotFound, ValidationFailed
from arl_wire.scores import Score, ScoreItem

__all__ = ["DOCUMENTED_ERRORS", "TIMEOUT_S", "apply_activation", "list_response", "router"]


TIMEOUT_S = 280.0
"""Seconds before a call is refused: below aiohttp's default of 300 s."""
CLASSIFIER_KINDS = ("classifier", "sequence-classifier")
DOCUMENTED_ERRORS = error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound, NotScored, RewardServiceNotFound)

router = APIRouter(tags=["compatibility"], route_class=CompatRoute)


class PoolingRequest(ScoringOptions):
    """A pooling request: `input` with texts or token ids, or one conversation as `messages`."""

    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]] | None = None
    messages: list[ConversationMessage] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        default=None, description="Not supported: the number of dimensions is that of the service's head"
    )


@router.post(
    "/classify",
    operation_id="vllm_classify",
    summary="Classify inputs (vLLM)",
    response_model=None,
    responses=DOCUMENTED_ERRORS,
)
@router.post("/v1/classify", include_in_schema=False)
async def classify(body: PoolingRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Classify inputs like vLLM.

    `probs` are raw logits if the service has no activation or the request disables it. Returns 422 if an input cannot
    be scored, and 503 after an infrastructure error.
    """
    place, entries = await _score_inputs(body, caller, request, response)
    data = []
    for at, entry in enumerate(entries):
        values = _activated_values(entry, at, place, body)
        best = max(range(len(values)), key=values.__getitem__)
        data.append({"index": at, "label": f"LABEL_{best}", "probs": values, "num_classes": len(values)})
    return json_response(list_response("classify", place, data=data), response)


@router.post(
    "/pooling",
    operation_id="vllm_pooling",
    summary="Pool inputs (vLLM)",
    response_model=None,
    responses=DOCUMENTED_ERRORS,
)
async def pooling(body: PoolingRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Return the output of the service's head for each input, like vLLM.

    Returns 422 if an input cannot be scored, and 503 after an infrastructure error.
    """
    place, entries = await _score_inputs(body, caller, request, response)
    data = [
        {
            "index": at,
            "object": "pooling",
            "data": _encode_values(_activated_values(entry, at, place, body), body.encoding_format),
        }
        for at, entry in enumerate(entries)
    ]
    return json_response(list_response("pool", place, data=data), response)


@router.post(
    "/v1/embeddings",
    operation_id="openai_embeddings",
    summary="Score inputs as embeddings (SGLang)",
    response_model=None,
    responses=DOCUMENTED_ERRORS,
)
async def embeddings(body: PoolingRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Return each input's score as its `embedding`, like SGLang for a reward model.

    Returns 422 if an input cannot be scored, and 503 after an infrastructure error.
    """
    place, entries = await _score_inputs(body, caller, request, response)
    data = [
        {"index": at, "object": "embedding", "embedding": _encode_values(_values(entry, at), body.encoding_format)}
        for at, entry in enumerate(entries)
    ]
    return json_response(list_response("embd", place, data=data), response)


async def _score_inputs(
    body: PoolingRequest, caller: Caller, request: Request, response: Response
) -> tuple[RewardTarget, Sequence[Score]]:
    refuse_unsupported_options(body)
    place = await resolve_target(request, CLASSIFIER_KINDS, model=body.model)
    items = _parse_items(body, place.service.kind)
    return place, await score_and_wait(items, place, caller, request, response, within_s=TIMEOUT_S)


def _parse_items(body: PoolingRequest, kind: str) -> list[ScoreItem]:
    if body.dimensions is not None:
        message = "is not supported: the number of dimensions is that of the service's head; remove the field"
        raise ValidationFailed(f"dimensions {message}", errors=[FieldError(field="dimensions", message=message)])
    if body.messages is not None and body.input is None:
        return [conversation_item(conversation_messages(body.messages, field="messages"), field="messages")]
    given: Any = body.input
    if given is None or body.messages is not None:
        message = "give exactly one of input and messages"
        raise ValidationFailed(message, errors=[FieldError(field="input", message=message)])
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [text_item(kind, given, field="input")]
    return [text_item(kind, each, field=f"input.{at}") for at, each in enumerate(given)]


def _activated_values(entry: Score, index: int, target: RewardTarget, body: PoolingRequest) -> list[float]:
    values = _values(entry, index)
    return values if entry.error is not None else apply_activation(values, target.service, body.use_activation)


def _values(entry: Score, index: int) -> list[float]:
    return entry.values if entry.values is not None else [require_score(entry, index)]


def _encode_values(values: Sequence[float], encoding: str) -> list[float] | str:
    if encoding == "float":
        return list(values)
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers).decode()


def list_response(prefix: str, target: RewardTarget, **content: Any) -> dict[str, Any]:
    """Return a list in OpenAI's format. Tokens are not counted."""
    return {
        "id": f"{prefix}-{uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": target.service.name,
        "usage": {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0},
        **content,
    }


ACTIVATED_KINDS = frozenset({"classifier"})
"""Kinds that return probabilities by default."""


def apply_activation(values: Sequence[float], service: ServiceEntry, activation: bool | None) -> list[float]:
    """Apply or invert the activation of a service; None keeps the values. Raises `ValidationFailed` for unknown logits.

    The activation is a sigmoid for one label and a softmax for several, like in vLLM.
    """
    said = service.options.get("activation")
    is_activated = bool(said) if said is not None else service.kind in ACTIVATED_KINDS
    if activation is None or activation == is_activated:
        return list(values)
    if activation:
        return _probabilities(values)
    if len(values) == 1 and 0 < values[0] < 1:
        return [math.log(values[0]) - math.log1p(-values[0])]
    message = (
        f"{service.name} returns probabilities, and its logits are unknown: register the service without activation"
    )
    raise ValidationFailed(message, errors=[FieldError(field="use_activation", message=message)])


def _probabilities(values: Sequence[float]) -> list[float]:
    if len(values) == 1:
        return [1 / (1 + math.exp(-values[0]))] if values[0] > 0 else [1 - 1 / (1 + math.exp(values[0]))]
    most = max(values)
    powers = [math.exp(value - most) for value in values]
    return [power / sum(powers) for power in powers]
