"""Test which nulls are removed from a body, that everything else stays as it is, and how routes use it."""

import json
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import AfterValidator, AliasChoices, BaseModel, Field, RootModel

from arl_kit import optional_nulls
from arl_kit.optional_nulls import OptionalNullRoute, without_optional_nulls


class Small(BaseModel):
    size: int = 1
    name: str


class Large(BaseModel):
    kind: Literal["large"]
    weight: float = 2.0


class Plain(BaseModel):
    kind: Literal["plain"]
    weight: float


class Fixed(BaseModel):
    version: Literal["1"] = "1"
    size: int = 1


class Body(BaseModel):
    name: str
    count: Annotated[int, AfterValidator(abs)] = 1
    note: str | None = None
    free: Any = None
    labels: dict[str, str] = {}
    options: dict[str, Any] = {}
    numbers: list[int] = []
    small: Small = Small(name="a")
    one: Small | None = None
    many: list[Small] = []
    fixed: Fixed | None = None
    named: dict[str, Small] = {}
    either: float | Small = 1.0
    tagged: Annotated[Large | Plain, Field(discriminator="kind")] = Plain(kind="plain", weight=1)
    renamed: int = Field(default=1, validation_alias=AliasChoices("first", "second"))
    aliased: int = Field(default=1, alias="other")


class Root(RootModel[Annotated[Large | Plain, Field(discriminator="kind")]]):
    pass


def reduced(model: type[BaseModel], value: Any) -> Any:
    content = without_optional_nulls(model, json.dumps(value).encode())
    return value if content is None else json.loads(content)


@pytest.mark.parametrize(
    "field", ["count", "labels", "options", "numbers", "small", "many", "named", "either", "tagged", "first", "second"]
)
def test_null_of_an_optional_field_is_removed(field: str) -> None:
    assert reduced(Body, {"name": "a", field: None}) == {"name": "a"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"one": {"size": None, "name": "b"}}, {"one": {"name": "b"}}),
        ({"many": [{"name": "b"}, {"size": None, "name": "c"}]}, {"many": [{"name": "b"}, {"name": "c"}]}),
        ({"named": {"x": {"size": None, "name": "b"}}}, {"named": {"x": {"name": "b"}}}),
        ({"either": {"size": None, "name": "b"}}, {"either": {"name": "b"}}),
        ({"tagged": {"kind": "large", "weight": None}}, {"tagged": {"kind": "large"}}),
        ({"fixed": {"version": None, "size": None}}, {"fixed": {}}),
    ],
)
def test_null_of_an_optional_field_inside_is_removed(value: Any, expected: Any) -> None:
    assert reduced(Body, {"name": "a", **value}) == {"name": "a", **expected}


@pytest.mark.parametrize(
    "value",
    [
        {"name": None},
        {"name": "a", "note": None},
        {"name": "a", "free": {"x": None, "y": [None]}},
        {"name": "a", "options": {"count": None, "x": {"name": None}}},
        {"name": "a", "labels": {"x": None}},
        {"name": "a", "numbers": [None, 1]},
        {"name": "a", "many": [None]},
        {"name": "a", "small": {"name": None}},
        {"name": "a", "tagged": {"kind": "plain", "weight": None}},
        {"name": "a", "tagged": {"kind": None, "weight": None}},
        {"name": "a", "unknown": None},
        [None],
        None,
    ],
)
def test_other_nulls_are_kept(value: Any) -> None:
    assert without_optional_nulls(Body, json.dumps(value).encode()) is None


def test_alias_of_a_field_is_its_name() -> None:
    assert reduced(Body, {"name": "a", "other": None, "aliased": None}) == {"name": "a", "aliased": None}


def test_root_model_is_reduced_by_its_tag() -> None:
    assert reduced(Root, {"kind": "large", "weight": None}) == {"kind": "large"}
    assert reduced(Root, {"kind": "plain", "weight": None}) == {"kind": "plain", "weight": None}


def test_other_values_are_kept() -> None:
    free = {"big": 2**70, "small": 1e-300, "text": "é\u2028\x7f", "flags": [True, False], "empty": {}}
    assert reduced(Body, {"name": "a", "count": None, "free": free}) == {"name": "a", "free": free}


@pytest.mark.parametrize(
    "content", [b"", b"null", b"{null", b'{"count": null, "name": "\\ud800"}', b'{"count":null,"free":' + b"1" * 5000]
)
def test_content_that_is_not_valid_json_is_left_to_the_validation(content: bytes) -> None:
    assert without_optional_nulls(Body, content) is None


class ReductionRecorder:
    """The reduction of bodies, which records its threads."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __call__(self, model: type[BaseModel], content: bytes) -> bytes | None:
        self.threads.append(threading.current_thread())
        return without_optional_nulls(model, content)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> ReductionRecorder:
    recorder = ReductionRecorder()
    monkeypatch.setattr(optional_nulls, "without_optional_nulls", recorder)
    return recorder


async def posted(body: Any, on_body: Callable[[Body], None] = lambda body: None, *, path: str = "/") -> int:
    router = APIRouter(route_class=OptionalNullRoute)

    @router.post("/")
    async def receive(body: Body, limit: int = 1) -> None:
        on_body(body)

    app = FastAPI()
    app.include_router(router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as client:
        return (await client.post(path, json=body)).status_code


@pytest.mark.parametrize("body", [{"name": "a", "note": None}, {"name": "a", "free": [None] * 100_000}])
async def test_valid_body_with_other_nulls_is_not_reduced(recorder: ReductionRecorder, body: Any) -> None:
    assert (await posted(body), recorder.threads) == (200, [])


@pytest.mark.parametrize(("size", "is_in_loop"), [(10, True), (300_000, False)])
async def test_body_with_null_is_reduced_once_and_large_ones_in_a_thread(
    recorder: ReductionRecorder, size: int, is_in_loop: bool
) -> None:
    received: list[Body] = []
    assert await posted({"name": "a" * size, "count": None}, received.append) == 200
    assert [(len(body.name), body.count) for body in received] == [(size, 1)]
    assert [thread is threading.current_thread() for thread in recorder.threads] == [is_in_loop]


async def test_wrong_query_does_not_reduce_the_body(recorder: ReductionRecorder) -> None:
    assert await posted({"name": "a", "note": None}, path="/?limit=x") == 422
    assert recorder.threads == []
