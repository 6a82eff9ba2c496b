"""NeMo-Gym's resources server: `nemo_gym/base_resources_server.py` and `server_utils.py` of NVIDIA-NeMo/Gym.

The agent calls `/seed_session` before each rollout and `/verify` after it. The response of `/verify` is the request
body and its `reward`. The agent has no timeout and is configured with a host and a port only, so the dataset names the
service. If its observability is on, the path starts with the rollout.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from arl_gateway.compat.blocking_score import CompatRoute, json_response, score_and_wait
from arl_gateway.compat.sample_parsing import (
    TrainerSample,
    content_text,
    invalid_field,
    item_from_sample,
    label_text,
    require_score,
)
from arl_gateway.compat.target import resolve_target
from arl_gateway.compat.vllm import DOCUMENTED_ERRORS, TIMEOUT_S
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, Writer
from arl_kit.app import error_responses

__all__ = ["router"]

LABEL_FIELDS = ("expected_answer", "label", "ground_truth", "answer")
"""Dataset fields with the expected answer, in the order of the lookup."""
DEFAULT_KINDS = ("classifier", "sequence-classifier")
"""Kinds that may serve as default. Verifiers must be named."""
OTHER_ITEMS = frozenset(
    {
        *("reasoning", "compaction", "item_reference", "program", "program_output"),
        *(f"{name}_call" for name in ("function", "custom_tool", "web_search", "file_search", "computer", "mcp")),
        *(f"{name}_call" for name in ("code_interpreter", "image_generation", "local_shell", "shell", "apply_patch")),
        *(f"{name}_call_output" for name in ("function", "custom_tool", "computer", "local_shell", "shell")),
        *("apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    }
)
"""Types of OpenAI's output items that contain no answer."""
OTHER_ROLES = ("user", "system", "developer", "tool")
"""Roles whose messages are not graded."""
SERVICE_FIELD = "tangram_service"
"""Dataset field that names the service."""

router = APIRouter(tags=["compatibility"], route_class=CompatRoute)


class SeedSessionRequest(BaseModel):
    """A row of the dataset."""

    model_config = ConfigDict(extra="allow")


class VerifyRequest(BaseModel):
    """Two of OpenAI's Responses objects, and the other fields of the dataset."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any] = {}
    response: dict[str, Any]


@router.post(
    "/seed_session",
    operation_id="nemo_gym_seed_session",
    summary="Start a rollout (NeMo-Gym)",
    response_model=None,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS),
)
async def seed_session(body: SeedSessionRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Start a rollout of NeMo-Gym.

    The route exists because NeMo-Gym calls it before each rollout. A reward service stores nothing for it.
    """
    return json_response({}, response)


@router.post(
    "/verify",
    operation_id="nemo_gym_verify",
    summary="Verify a rollout (NeMo-Gym)",
    response_model=None,
    responses=DOCUMENTED_ERRORS,
)
async def verify_rollout(body: VerifyRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Verify a rollout of NeMo-Gym.

    The response is the request body with its `reward`. Returns 422 if the rollout cannot be scored, and 503 after an
    infrastructure error.
    """
    named = (body.model_extra or {}).get(SERVICE_FIELD)
    place = await resolve_target(request, DEFAULT_KINDS, model=named if isinstance(named, str) else None)
    item = item_from_sample(place.service.kind, _parse_sample(body), field="response")
    (entry,) = await score_and_wait([item], place, caller, request, response, within_s=TIMEOUT_S)
    return json_response({**body.model_dump(mode="json"), "reward": require_score(entry, 0)}, response)


def _parse_sample(body: VerifyRequest) -> TrainerSample:
    """Return the prompt, the text of the assistant's last message and the label."""
    said = _assistant_texts(body.response.get("output"))
    given = body.model_extra or {}
    label = next((given[name] for name in LABEL_FIELDS if given.get(name) is not None), None)
    prompt = _prompt_text(body.responses_create_params.get("input"))
    return TrainerSample(prompt=prompt, response=said[-1] if said else "", label=label_text(label))


def _prompt_text(asked: Any) -> str:
    if isinstance(asked, str):
        return asked
    field = "responses_create_params.input"
    turns = [each for each in asked if isinstance(each, dict)] if isinstance(asked, list) else []
    return "\n".join(content_text(turn.get("content"), field=field) for turn in turns)


def _assistant_texts(output: Any) -> list[str]:
    """Return the texts of the assistant's messages. Raises `ValidationFailed` for items of an unknown form.

    Messages of a simulated user are not the policy's. An item that might be an answer is refused and not ignored,
    because an ignored answer would get a score of 0.
    """
    if not isinstance(output, list):
        raise invalid_field("response.output", "must be a list of output items")
    texts = []
    for at, item in enumerate(output):
        field = f"response.output.{at}"
        if not isinstance(item, dict):
            raise invalid_field(field, "must be an object with `type`, such as a message with `role` and `content`")
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise invalid_field(f"{field}.type", "is missing: send `message`, or the type of another output item")
        role = item.get("role", "assistant")
        if kind in OTHER_ITEMS or (kind == "message" and role in OTHER_ROLES):
            continue
        if kind != "message":
            raise invalid_field(f"{field}.type", "is not a type of an output item: send `message` for an answer")
        if role != "assistant":
            raise invalid_field(f"{field}.role", "must be `assistant` for a message that is graded")
        if "content" not in item:
            raise invalid_field(f"{field}.content", "is missing: send a text, null, or a list of parts")
        texts.append(content_text(item["content"], field=f"{field}.content"))
    return texts
