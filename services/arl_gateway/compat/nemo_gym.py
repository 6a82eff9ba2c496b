"""NeMo-Gym's `/verify` of a resources server: `nemo_gym/base_resources_server.py` of NVIDIA-NeMo/Gym.

The body is that of the rollout, answered with its `reward` beside what came. Its client has no time-out.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from arl_gateway.compat.asking import CompatRoute, answered, score
from arl_gateway.compat.places import place_of
from arl_gateway.compat.samples import Sample, item_of, label_of, number_of
from arl_gateway.compat.vllm import DOCUMENTED, WITHIN_S
from arl_gateway.routes import Writer

__all__ = ["router"]

LABELS = ("expected_answer", "label", "ground_truth", "answer")
"""Fields of datasets that say what is right, in the order in which they are looked for."""
KINDS = ("classifier", "sequence-classifier")
"""Where none is named; verifiers are."""

router = APIRouter(tags=["compatibility"], route_class=CompatRoute)


class VerifyRequest(BaseModel):
    """Two of OpenAI's Responses objects, and whatever the dataset has besides."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any] = {}
    response: dict[str, Any]


@router.post("/verify", operation_id="nemo_gym_verify", response_model=None, responses=DOCUMENTED)
async def verify(body: VerifyRequest, caller: Writer, request: Request, response: Response) -> Response:
    """NeMo-Gym's verification of a rollout: the body that came, with its `reward`."""
    place = await place_of(request, KINDS)
    item = item_of(place.service.kind, _sample(body), field="response")
    (entry,) = await score([item], place, caller, request, response, within_s=WITHIN_S)
    return answered({**body.model_dump(mode="json"), "reward": number_of(entry, 0)}, response)


def _sample(body: VerifyRequest) -> Sample:
    """The text of the last message, and what was asked."""
    output = _dicts(body.response.get("output"))
    said = [_text(each.get("content")) for each in output if each.get("type") == "message"]
    asked = body.responses_create_params.get("input")
    prompt = asked if isinstance(asked, str) else "\n".join(_text(turn.get("content")) for turn in _dicts(asked))
    given = body.model_extra or {}
    label = next((given[name] for name in LABELS if given.get(name) is not None), None)
    return Sample(prompt=prompt, response=said[-1] if said else "", label=label_of(label))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in _dicts(content))


def _dicts(given: Any) -> list[dict[str, Any]]:
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
