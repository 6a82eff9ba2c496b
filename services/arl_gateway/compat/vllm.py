"""vLLM's pooling API and SGLang's embeddings, as verl's reward loop and others call them.

`verl/experimental/reward_loop/reward_loop.py` of verl-project/verl reads `data[-1].probs[-1]` of `/classify` and
`data[-1].embedding[-1]` of `/v1/embeddings`; it waits for ever, comes back after a 5xx and dies of a 4xx. Fields that
are not known here are ignored, as vLLM does.
"""

import sys
import time
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Request, Response
from pydantic import AliasChoices, BaseModel, Field

from arl_gateway.auth import Caller
from arl_gateway.compat.activation import as_wanted
from arl_gateway.compat.asking import CompatRoute, answered, score
from arl_gateway.compat.places import Place, place_of
from arl_gateway.compat.samples import conversation, number_of, text_item
from arl_gateway.routes import ANY, BODY, Writer
from arl_kit.app import documented
from arl_wire.errors import FieldError, NotFound, NotScored, ServiceUnknown, ValidationFailed
from arl_wire.scores import Message, Score, ScoreItem

__all__ = ["DOCUMENTED", "WITHIN_S", "router", "said"]

WITHIN_S = 280.0
"""Below the 300 s that aiohttp gives a request where its caller says nothing."""
CLASSIFIERS = ("classifier", "sequence-classifier")
DOCUMENTED = documented(*ANY, *BODY, NotFound, NotScored, ServiceUnknown)

router = APIRouter(tags=["compatibility"], route_class=CompatRoute)


class PoolingRequest(BaseModel):
    """`input`, texts or token ids, or one conversation as `messages`."""

    model: str | None = None
    input: str | list[str] | list[int] | list[list[int]] | None = None
    messages: list[Message] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, description="Refused: an answer has as many as the service's head")
    use_activation: bool | None = Field(
        default=None,
        validation_alias=AliasChoices("use_activation", "activation"),
        description="False: raw logits; left out: what the service says",
    )


@router.post("/classify", operation_id="vllm_classify", response_model=None, responses=DOCUMENTED)
@router.post("/v1/classify", include_in_schema=False)
async def classify(body: PoolingRequest, caller: Writer, request: Request, response: Response) -> Response:
    """vLLM's classification. `probs` are raw logits where the service has no activation, or the request wants none."""
    place, entries = await _scored(body, caller, request, response)
    data = []
    for at, entry in enumerate(entries):
        values = _wanted(entry, at, place, body)
        best = max(range(len(values)), key=values.__getitem__)
        data.append({"index": at, "label": f"LABEL_{best}", "probs": values, "num_classes": len(values)})
    return answered(said("classify", place, data=data), response)


@router.post("/pooling", operation_id="vllm_pooling", response_model=None, responses=DOCUMENTED)
async def pooling(body: PoolingRequest, caller: Writer, request: Request, response: Response) -> Response:
    """vLLM's pooling: what the service's head says of each input."""
    place, entries = await _scored(body, caller, request, response)
    data = [
        {
            "index": at,
            "object": "pooling",
            "data": _encoded(_wanted(entry, at, place, body), body.encoding_format),
        }
        for at, entry in enumerate(entries)
    ]
    return answered(said("pool", place, data=data), response)


@router.post("/v1/embeddings", operation_id="openai_embeddings", response_model=None, responses=DOCUMENTED)
async def embeddings(body: PoolingRequest, caller: Writer, request: Request, response: Response) -> Response:
    """As SGLang answers for a reward model: the `embedding` of an input is its score."""
    place, entries = await _scored(body, caller, request, response)
    data = [
        {"index": at, "object": "embedding", "embedding": _encoded(_values(entry, at), body.encoding_format)}
        for at, entry in enumerate(entries)
    ]
    return answered(said("embd", place, data=data), response)


async def _scored(
    body: PoolingRequest, caller: Caller, request: Request, response: Response
) -> tuple[Place, Sequence[Score]]:
    place = await place_of(request, CLASSIFIERS, model=body.model)
    items = _items(body, place.service.kind)
    return place, await score(items, place, caller, request, response, within_s=WITHIN_S)


def _items(body: PoolingRequest, kind: str) -> list[ScoreItem]:
    if body.dimensions is not None:
        message = "is not supported: an answer has as many as the service's head; leave it out"
        raise ValidationFailed(f"dimensions {message}", errors=[FieldError(field="dimensions", message=message)])
    if body.messages is not None and body.input is None:
        return [conversation(body.messages, field="messages")]
    given: Any = body.input
    if given is None or body.messages is not None:
        message = "give one of input and messages"
        raise ValidationFailed(message, errors=[FieldError(field="input", message=message)])
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [text_item(kind, given, field="input")]
    return [text_item(kind, each, field=f"input.{at}") for at, each in enumerate(given)]


def _wanted(entry: Score, at: int, place: Place, body: PoolingRequest) -> list[float]:
    values = _values(entry, at)
    return values if entry.error is not None else as_wanted(values, place.service, body.use_activation)


def _values(entry: Score, at: int) -> list[float]:
    return entry.values if entry.values is not None else [number_of(entry, at)]


def _encoded(values: Sequence[float], encoding: str) -> list[float] | str:
    if encoding == "float":
        return list(values)
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers).decode()


def said(prefix: str, place: Place, **content: Any) -> dict[str, Any]:
    """A list in OpenAI's form. Tokens are not counted here."""
    return {
        "id": f"{prefix}-{uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": place.service.name,
        "usage": {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0},
        **content,
    }
