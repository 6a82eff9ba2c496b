"""One rule for null in JSON bodies: an optional field that is null means the same as an absent field.

Fields whose type accepts null keep it, and so does everything inside free-form values. Null in a required field stays
an error.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AliasChoices, BaseModel, RootModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["OptionalNullRoute", "reduce_body", "without_optional_nulls"]

_THREAD_BYTES = 256 << 10
"""Size from which a body is reduced in a thread: the event loop must not wait for milliseconds."""

Reduce = Callable[[Any], Any]


class OptionalNullRoute(APIRoute):
    """A route of FastAPI that repeats the validation of a wrong body without null in optional fields."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of FastAPI, which gets the body without these nulls if it refuses the received one."""
        handle = super().get_route_handler()
        model = self.body_field.field_info.annotation if self.body_field is not None else None
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return handle

        async def handle_nulls(request: Request) -> Response:
            """Handle the request. FastAPI validates before it calls the endpoint, so the endpoint runs once."""
            try:
                return await handle(request)
            except RequestValidationError as error:
                if all(each["loc"][:1] != ("body",) for each in error.errors()):
                    raise
                content = await reduce_body(model, await request.body())
                if content is None:
                    raise
            return await handle(_RequestWithBody(request, content))

        return handle_nulls


async def reduce_body(model: type[BaseModel], content: bytes) -> bytes | None:
    """Return the result of `without_optional_nulls`. The event loop does not wait for large bodies."""
    if len(content) < _THREAD_BYTES:
        return without_optional_nulls(model, content)
    return await asyncio.to_thread(without_optional_nulls, model, content)


def without_optional_nulls(model: type[BaseModel], content: bytes) -> bytes | None:
    """Return a body without the nulls of optional fields; None if it has no such nulls or is not JSON."""
    if b"null" not in content:
        return None
    try:
        given = from_json(content)
        reduced = _reduce_model(model, given)
        return None if reduced is given else json.dumps(reduced, ensure_ascii=False).encode()
    except ValueError:
        return None


class _RequestWithBody(Request):
    """A received request with another body."""

    def __init__(self, request: Request, content: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._body = content


@dataclass(frozen=True, slots=True)
class _Field:
    """What to do with a field: remove its null, and reduce its value."""

    removes_null: bool
    reduce: Reduce | None


def _reduce_model(model: type[BaseModel], value: Any) -> Any:
    """Return the value without nulls of the model's optional fields: the same object if there are none."""
    if issubclass(model, RootModel):
        reduce_root = _fields_of(model)["root"].reduce
        return value if reduce_root is None else reduce_root(value)
    if not isinstance(value, dict):
        return value
    changed: dict[str, Any] = {}
    removed: set[str] = set()
    for name, field in _fields_of(model).items():
        given = value.get(name)
        if given is None:
            if field.removes_null and name in value:
                removed.add(name)
        elif field.reduce is not None and (reduced := field.reduce(given)) is not given:
            changed[name] = reduced
    if not changed and not removed:
        return value
    return {name: changed.get(name, given) for name, given in value.items() if name not in removed}


@cache
def _fields_of(model: type[BaseModel]) -> Mapping[str, _Field]:
    """Return the fields of a model by each of their names in JSON."""
    return {
        key: _Field(not field.is_required() and not _accepts_null(field), _reducer(field.annotation))
        for name, field in model.model_fields.items()
        for key in _json_names(name, field)
    }


def _json_names(name: str, field: FieldInfo) -> list[str]:
    if isinstance(field.validation_alias, AliasChoices):
        return [choice for choice in field.validation_alias.choices if isinstance(choice, str)]
    return [field.validation_alias if isinstance(field.validation_alias, str) else name]


def _accepts_null(field: FieldInfo) -> bool:
    checked: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    try:
        TypeAdapter(checked).validate_python(None)
    except ValidationError:
        return False
    return True


def _reducer(annotation: Any) -> Reduce | None:
    """Return the function for values of a type; None if the type contains no model."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return partial(_reduce_model, annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _reducer(arguments[0])
    if origin in (Union, UnionType):
        return _union_reducer(arguments)
    inner = _reducer(arguments[-1]) if origin in (list, dict) else None
    if inner is None:
        return None
    return partial(_reduce_list, inner) if origin is list else partial(_reduce_dict, inner)


def _union_reducer(choices: tuple[Any, ...]) -> Reduce | None:
    models = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)]
    others = [other for choice in choices if choice not in models and (other := _reducer(choice)) is not None]
    if not models and not others:
        return None

    def reduce(value: Any) -> Any:
        """Reduce the value by the models that its literals allow."""
        for model in models:
            if isinstance(value, dict) and _has_literals_of(model, value):
                value = _reduce_model(model, value)
        for other in others:
            value = other(value)
        return value

    return reduce


def _has_literals_of(model: type[BaseModel], value: Mapping[str, Any]) -> bool:
    """Return whether the value has the constants of the model, such as the tag of a union."""
    return all(
        value[name] in get_args(field.annotation) or (value[name] is None and not field.is_required())
        for name, field in model.model_fields.items()
        if name in value and get_origin(field.annotation) is Literal
    )


def _reduce_list(reduce: Reduce, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    reduced = [reduce(each) for each in value]
    return value if all(after is before for after, before in zip(reduced, value, strict=True)) else reduced


def _reduce_dict(reduce: Reduce, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    reduced = {name: reduce(each) for name, each in value.items()}
    return value if all(reduced[name] is each for name, each in value.items()) else reduced
