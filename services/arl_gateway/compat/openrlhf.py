"""OpenRLHF's remote reward (`--reward.remote_url`): `openrlhf/utils/remote_rm_utils.py` of OpenRLHF/OpenRLHF.

The client sends one query a call, waits 180 s and tries five times, regardless of the status. If all fail it has no
reward, which may crash 0.11.2. If several URLs are configured, the later ones get empty lists. If the dataset has no
label key, each label is `""`.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from arl_gateway.compat.blocking_score import CompatRoute, json_response, score_and_wait
from arl_gateway.compat.prompt_overlap import response_of
from arl_gateway.compat.sample_parsing import TrainerSample, invalid_field, item_from_sample, label_text, require_score
from arl_gateway.compat.target import resolve_target
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, Writer
from arl_kit.app import error_responses
from arl_wire.errors import NotFound, NotScored, RewardServiceNotFound
from arl_wire.reward_services.kinds import VERIFIERS

__all__ = ["router"]

TIMEOUT_S = 170.0
"""Seconds before a call is refused: just below the client's timeout. A refusal costs the client one of its tries."""
DEFAULT_KINDS = ("classifier", "sequence-classifier")

router = APIRouter(tags=["compatibility"], route_class=CompatRoute)


class RewardRequest(BaseModel):
    """A reward request. `query` is prompt and response, joined by the template."""

    query: list[str]
    prompts: list[str] | None = None
    labels: list[Any] | None = Field(
        default=None,
        description="Label of each query. A value that is not text is compared as JSON; an empty text means no label",
    )


class RewardResponse(BaseModel):
    """The rewards of the queries, in order; `scores` repeats them."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


@router.post(
    "/get_reward",
    operation_id="openrlhf_get_reward",
    summary="Score queries (OpenRLHF)",
    response_model=RewardResponse,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound, NotScored, RewardServiceNotFound),
)
async def get_reward(body: RewardRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Score queries like OpenRLHF's reward model server.

    The call blocks until all queries are scored. Returns 503 after an infrastructure error; a failure is never a score
    of 0.
    """
    place = await resolve_target(request, DEFAULT_KINDS)
    kind = place.service.kind
    items = [
        item_from_sample(kind, sample, field=f"labels.{at}") for at, sample in enumerate(_parse_samples(body, kind))
    ]
    entries = await score_and_wait(items, place, caller, request, response, within_s=TIMEOUT_S)
    rewards = [require_score(entry, at) for at, entry in enumerate(entries)]
    truncated = [float(entry.truncated) for entry in entries]
    return json_response({"rewards": rewards, "scores": rewards, "extra_logs": {"truncated": truncated}}, response)


def _parse_samples(body: RewardRequest, kind: str) -> list[TrainerSample]:
    prompts = body.prompts if body.prompts is not None else [""] * len(body.query)
    labels = body.labels if body.labels is not None else [None] * len(body.query)
    for name, given in (("prompts", prompts), ("labels", labels)):
        if len(given) != len(body.query):
            raise invalid_field(
                name, f"has {len(given)} entries, but query has {len(body.query)}: send one for each query"
            )
    samples = []
    for at, (query, prompt, label) in enumerate(zip(body.query, prompts, labels, strict=True)):
        response = response_of(query, prompt)
        if response is None and kind in VERIFIERS:
            raise invalid_field(
                f"query.{at}", "does not contain the end of its prompt at its start, so the response is unknown"
            )
        samples.append(
            TrainerSample(
                prompt=prompt,
                response=query if response is None else response,
                label=label_text(label) or None,
                full_text=query,
            )
        )
    return samples
