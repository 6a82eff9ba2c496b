"""vLLM's and SGLang's scores of pairs, and reranking in the format of Jina and Cohere."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from arl_gateway.compat.blocking_score import CompatRoute, json_response, score_and_wait
from arl_gateway.compat.sample_parsing import pair_item, require_score, text_item
from arl_gateway.compat.scoring_options import ScoringOptions, refuse_unsupported_options
from arl_gateway.compat.target import RewardTarget, resolve_target
from arl_gateway.compat.vllm import DOCUMENTED_ERRORS, TIMEOUT_S, apply_activation, list_response
from arl_gateway.http.auth import Caller
from arl_gateway.http.dependencies import Writer
from arl_wire.errors import FieldError, ValidationFailed
from arl_wire.scores import Score

__all__ = ["pair_scores", "router"]

COMPARING_KINDS = ("reranker", "relevance")
TEACHER_KINDS = ("logprobs",)
TextInput = str | list[str]

router = APIRouter(tags=["compatibility"], route_class=CompatRoute)


class PairScoreRequest(ScoringOptions):
    """A pair request: vLLM's `text_1` and `text_2` and its later names, or SGLang's `query` and `items`."""

    model: str | None = None
    text_1: TextInput | None = None
    text_2: TextInput | None = None
    data_1: TextInput | None = None
    data_2: TextInput | None = None
    queries: TextInput | None = None
    documents: TextInput | None = None
    query: str | list[int] | None = None
    items: TextInput | list[list[int]] | None = None
    label_token_ids: list[int] | None = Field(default=None, min_length=1)
    apply_softmax: bool = False
    item_first: bool = False


class RerankDocument(BaseModel):
    """A document as an object with its text."""

    text: str


class RerankRequest(ScoringOptions):
    """Documents to sort by relevance to a query."""

    model: str | None = None
    query: str
    documents: list[str | RerankDocument] = Field(min_length=1)
    top_n: int = Field(default=0, ge=0, description="Number of documents to return; 0 returns all")


@router.post(
    "/score",
    operation_id="vllm_score",
    summary="Score pairs of texts (vLLM)",
    response_model=None,
    responses=DOCUMENTED_ERRORS,
)
@router.post("/v1/score", include_in_schema=False)
async def score_texts(body: PairScoreRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Score pairs of texts: one query with each text, or equally many queries and texts.

    Returns 422 if a pair cannot be scored, and 503 after an infrastructure error.
    """
    refuse_unsupported_options(body)
    if body.label_token_ids is not None:
        return await _score_labels(body, caller, request, response)
    place = await resolve_target(request, COMPARING_KINDS, model=body.model)
    pairs = _parse_pairs(body)
    items = [pair_item(place.service.kind, query, text, field="text_1") for query, text in pairs]
    entries = await score_and_wait(items, place, caller, request, response, within_s=TIMEOUT_S)
    numbers = pair_scores(entries, place, body.use_activation)
    if body.query is not None:
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        scoring = {"scores": [[each] for each in numbers], "model": place.service.name, "usage": usage}
        return json_response({**scoring, "object": "scoring"}, response)
    data = [{"index": at, "object": "score", "score": each} for at, each in enumerate(numbers)]
    return json_response(list_response("score", place, data=data), response)


@router.post(
    "/rerank",
    operation_id="vllm_rerank",
    summary="Rerank documents (vLLM)",
    response_model=None,
    responses=DOCUMENTED_ERRORS,
)
@router.post("/v1/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
async def rerank(body: RerankRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Sort documents by relevance to a query, the most relevant first.

    Returns 422 if a document cannot be scored, and 503 after an infrastructure error.
    """
    refuse_unsupported_options(body)
    place = await resolve_target(request, COMPARING_KINDS, model=body.model)
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    items = [pair_item(place.service.kind, body.query, text, field=f"documents.{at}") for at, text in enumerate(texts)]
    entries = await score_and_wait(items, place, caller, request, response, within_s=TIMEOUT_S)
    numbers = pair_scores(entries, place, body.use_activation)
    order = sorted(range(len(numbers)), key=lambda at: (-numbers[at], at))[: body.top_n or None]
    results = [{"index": at, "document": {"text": texts[at]}, "relevance_score": numbers[at]} for at in order]
    content = list_response("rerank", place, results=results)
    return json_response({name: content[name] for name in ("id", "model", "usage", "results")}, response)


def pair_scores(entries: Sequence[Score], target: RewardTarget, activation: bool | None) -> list[float]:
    """Return the score of each pair. A `relevance` is a cosine similarity, which has no activation."""
    numbers = [require_score(entry, at) for at, entry in enumerate(entries)]
    if target.service.kind == "relevance":
        return numbers
    return [
        number if entry.error is not None else apply_activation([number], target.service, activation)[0]
        for number, entry in zip(numbers, entries, strict=True)
    ]


async def _score_labels(body: PairScoreRequest, caller: Caller, request: Request, response: Response) -> Response:
    """Return the probability of each label as the token after a query and an item, like SGLang."""
    place = await resolve_target(request, TEACHER_KINDS, model=body.model)
    labels = body.label_token_ids or []
    texts = list(_label_prompts(body))
    items = [
        text_item(place.service.kind, text, field=f"items.{at}", label_token_ids=labels)
        for at, text in enumerate(texts)
    ]
    entries = await score_and_wait(items, place, caller, request, response, within_s=TIMEOUT_S)
    scores = [
        _label_probabilities(entry.values, apply_softmax=body.apply_softmax)
        if entry.values
        else [require_score(entry, at)]
        for at, entry in enumerate(entries)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    return json_response({"scores": scores, "model": place.service.name, "usage": usage, "object": "scoring"}, response)


def _label_prompts(body: PairScoreRequest) -> Iterator[str | list[int]]:
    query: Any = body.query
    items: Any = [body.items] if isinstance(body.items, str) else body.items
    if query is None or not items or any(type(item) is not type(query) for item in items):
        message = "label_token_ids needs query and items, both as texts or both as tokens"
        raise ValidationFailed(message, errors=[FieldError(field="items", message=message)])
    for item in items:
        yield item + query if body.item_first else query + item


def _label_probabilities(logprobs: Sequence[float], *, apply_softmax: bool) -> list[float]:
    """Return probabilities over the whole vocabulary, or normalized over the labels."""
    if not apply_softmax:
        return [math.exp(logprob) for logprob in logprobs]
    most = max(logprobs)
    likely = [math.exp(logprob - most) for logprob in logprobs]
    return [each / math.fsum(likely) for each in likely]


def _parse_pairs(body: PairScoreRequest) -> list[tuple[str, str]]:
    named = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
    for one, other in (*named, ("query", "items")):
        left: Any = getattr(body, one)
        right: Any = getattr(body, other)
        if left is None or right is None:
            continue
        lefts, rights = _parse_texts(left, one), _parse_texts(right, other)
        if len(lefts) == 1:
            lefts = lefts * len(rights)
        if len(lefts) != len(rights):
            message = f"has {len(lefts)} texts, but {other} has {len(rights)}: give one text, or as many"
            raise ValidationFailed(f"{one} {message}", errors=[FieldError(field=one, message=message)])
        return list(zip(lefts, rights, strict=True))
    message = "give text_1 and text_2, or queries and documents, or query and items"
    raise ValidationFailed(message, errors=[FieldError(field="text_1", message=message)])


def _parse_texts(given: Any, field: str) -> list[str]:
    texts: list[Any] = [given] if isinstance(given, str) else given
    if not texts:
        message = "is empty: give at least one text"
        raise ValidationFailed(f"{field} {message}", errors=[FieldError(field=field, message=message)])
    if not all(isinstance(each, str) for each in texts):
        message = "has tokens, which are allowed only with label_token_ids: give texts"
        raise ValidationFailed(f"{field} {message}", errors=[FieldError(field=field, message=message)])
    return texts
