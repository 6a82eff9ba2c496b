"""OpenRLHF's remote reward (`--reward.remote_url`): `openrlhf/utils/remote_rm_utils.py` of OpenRLHF/OpenRLHF.

It sends one query a call, waits 180 s, tries five times whatever the status, and has no reward then, of which 0.11.2
may die. Of several URLs the later ones get empty lists. A dataset without a key for labels has `""` for each.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from arl_gateway.compat.asking import CompatRoute, answered, score
from arl_gateway.compat.places import place_of
from arl_gateway.compat.samples import Sample, item_of, label_of, number_of
from arl_gateway.routes import ANY, BODY, Writer
from arl_kit.app import documented
from arl_wire.errors import FieldError, NotFound, NotScored, ServiceUnknown, ValidationFailed
from arl_wire.kinds import VERIFIERS

__all__ = ["router"]

WITHIN_S = 170.0
"""Just before the client would give up: a refusal costs it one of its tries."""
KINDS = ("classifier", "sequence-classifier")

router = APIRouter(tags=["compatibility"], route_class=CompatRoute)


class RewardRequest(BaseModel):
    """`query`: prompt and response as the template joins them."""

    query: list[str]
    prompts: list[str] | None = None
    labels: list[Any] | None = Field(
        default=None, description="Of each query: what is no text is compared as JSON, and an empty text is none"
    )


class RewardReply(BaseModel):
    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


@router.post(
    "/get_reward",
    operation_id="openrlhf_get_reward",
    response_model=RewardReply,
    responses=documented(*ANY, *BODY, NotFound, NotScored, ServiceUnknown),
)
async def get_reward(body: RewardRequest, caller: Writer, request: Request, response: Response) -> Response:
    """OpenRLHF's reward model server. Held until the scores are there; never a 0 for what was not computed."""
    place = await place_of(request, KINDS)
    kind = place.service.kind
    items = [item_of(kind, sample, field=f"labels.{at}") for at, sample in enumerate(_samples(body, kind))]
    entries = await score(items, place, caller, request, response, within_s=WITHIN_S)
    rewards = [number_of(entry, at) for at, entry in enumerate(entries)]
    truncated = [float(entry.truncated) for entry in entries]
    return answered({"rewards": rewards, "scores": rewards, "extra_logs": {"truncated": truncated}}, response)


def _samples(body: RewardRequest, kind: str) -> list[Sample]:
    prompts = body.prompts if body.prompts is not None else [""] * len(body.query)
    labels = body.labels if body.labels is not None else [None] * len(body.query)
    for name, given in (("prompts", prompts), ("labels", labels)):
        if len(given) != len(body.query):
            raise _refused(name, f"has {len(given)} entries, and query has {len(body.query)}")
    for at, (query, prompt) in enumerate(zip(body.query, prompts, strict=True)):
        if kind in VERIFIERS and not query.startswith(prompt):
            raise _refused(f"query.{at}", "does not begin with its prompt, so what was answered is not known")
    return [
        Sample(prompt=prompt, response=query.removeprefix(prompt), label=label_of(label) or None, whole=query)
        for query, prompt, label in zip(body.query, prompts, labels, strict=True)
    ]


def _refused(field: str, message: str) -> ValidationFailed:
    return ValidationFailed(f"{field} {message}", errors=[FieldError(field=field, message=message)])
