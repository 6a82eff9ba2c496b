"""Test that null in any optional field of any body means the same as an absent field."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, RootModel, ValidationError

from arl_gateway.app import ROUTERS
from arl_gateway.examples import EXAMPLES
from arl_gateway.openapi import MEANINGFUL_NULLS
from arl_kit.optional_nulls import OptionalNullRoute, without_optional_nulls

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute) and route.body_field]
SMALLEST: dict[str, dict[str, Any]] = {
    "ActionBatchRequest": {"actions": [{"task": "t", "argv": ["true"]}]},
    "AmdahlElasticity": {"model": "amdahl", "parallel_fraction": 0.5},
    "ChangeNodeRequest": {"cordoned": True},
    "ChangeProjectRequest": {"weight": 2},
    "ChangeQueueRequest": {"paused": True, "weight": 2},
    "ChatMessage": {"role": "user", "content": "a"},
    "ChatRequest": {"messages": [{"role": "user", "content": "a"}]},
    "CompletionRequest": {"prompt": "a", "prompt_logprobs": 0},
    "ConversationMessage": {"role": "user", "content": "a"},
    "CpuRange": {"min": 1, "max": 2},
    "CreateEnvironmentRequest": {"task": "t", "trajectory": "a"},
    "ForkEnvironmentRequest": {"count": 2, "trajectories": ["a", "b"]},
    "JudgeOptions": {"prompt": "{response}", "json_field": "a", "words": {"yes": 1}},
    "NoElasticity": {"model": "none"},
    "PromptMessage": {"role": "user", "content": "a"},
    "RegisterRewardServiceRequest": {"name": "a", "kind": "classifier", "source": "a"},
    "RerankDocument": {"text": "a"},
    "RerankRequest": {"query": "a", "documents": ["a"]},
    "RewardRequest": {"query": ["a"], "prompts": ["a"]},
    "RunCodeRequest": {"code": "1"},
    "SampleRequest": {"prompt": "a", "response": "b"},
    "ScoreRequest": {"task": "t", "service": "a", "items": [{"text": "a"}]},
    "SendInputRequest": {"text": "a"},
    "SubmitActionRequest": {"task": "t", "argv": ["true"]},
    "SwerexBashAction": {"action_type": "bash", "command": "a"},
    "SwerexBashInterruptAction": {"action_type": "bash_interrupt"},
    "SwerexExecuteRequest": {"command": "a"},
    "SwerexReadFileRequest": {"path": "a"},
    "SwerexWriteFileRequest": {"path": "a", "content": "b"},
    "TableElasticity": {"model": "table", "seconds": {"1": 2, "2": 1}},
    "TextPart": {"type": "text", "text": "a"},
    "UpdateEnvironmentRequest": {"network": "open"},
    "NetworkAllowList": {"allow": ["a.example"]},
    "VerifyRequest": {"response": {}},
    "WaitRequest": {"ids": ["01920000-0000-7000-8000-000000000001"]},
    "PullImagesRequest": {"images": ["python:3.12"]},
    "RemoveImagesRequest": {"images": ["python:3.12"]},
    "PublishPoolRequest": {
        "controller": "c1",
        "engine": "local",
        "kind": "cpu",
        "min_nodes": 1,
        "max_nodes": 2,
        "wanted": 1,
        "present": 1,
        "ready": 1,
    },
}
"""A valid value of each model with required fields."""


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not issubclass(annotation, RootModel):
            yield annotation
        for field in annotation.model_fields.values():
            yield from models_of(field.annotation)
    for inner in get_args(annotation):
        yield from models_of(inner)


MODELS = {
    model.__name__: model
    for route in ROUTES
    if route.body_field
    for model in models_of(route.body_field.field_info.annotation)
}
FIELDS = [
    pytest.param(model, name, id=f"{model.__name__}.{name}")
    for model in MODELS.values()
    for name, field in model.model_fields.items()
    if not field.is_required() and (model.__name__, name) not in MEANINGFUL_NULLS
]


def outcome(model: type[BaseModel], value: dict[str, Any]) -> Any:
    """Return what a route makes of a body: the model, or its errors."""
    content = json.dumps(value).encode()
    try:
        return model.model_validate_json(without_optional_nulls(model, content) or content)
    except ValidationError as error:
        return error.errors(include_url=False, include_input=False, include_context=False)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_with_a_json_body_applies_the_rule(route: APIRoute) -> None:
    assert isinstance(route, OptionalNullRoute)


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_null_in_an_optional_field_means_the_same_as_an_absent_field(model: type[BaseModel], name: str) -> None:
    smallest = SMALLEST.get(model.__name__, {})
    accepted = outcome(model, smallest)
    assert isinstance(accepted, BaseModel), accepted
    absent = {field: value for field, value in smallest.items() if field != name}
    assert outcome(model, {**smallest, name: None}) == outcome(model, absent)


@pytest.mark.parametrize("operation", EXAMPLES)
def test_examples_with_all_other_optional_fields_null_are_unchanged(operation: str) -> None:
    for route in (each for each in ROUTES if each.operation_id == operation):
        model: Any = route.body_field.field_info.annotation if route.body_field else None
        names = (
            [] if issubclass(model, RootModel) else [n for n, f in model.model_fields.items() if not f.is_required()]
        )
        meaningful = {field for kind, field in MEANINGFUL_NULLS if kind == model.__name__}
        nulls = dict.fromkeys(name for name in names if name not in meaningful)
        for example in EXAMPLES[operation].values():
            value = example["value"]
            assert outcome(model, {**nulls, **value}) == outcome(model, value)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_null_in_a_required_field_is_refused(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        if field.is_required() and field.annotation is not Any:
            found = outcome(model, {**SMALLEST.get(model.__name__, {}), name: None})
            assert isinstance(found, list), f"{model.__name__}.{name} is {found}"
