"""The gateway's OpenAPI document, in a form that client generators read without losses.

`python -m arl_gateway.openapi` writes it to standard output; `make openapi` updates `openapi/gateway.json`.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from arl_gateway.examples import EXAMPLES
from arl_gateway.response_examples import RESPONSE_EXAMPLES

__all__ = ["customize_openapi"]

DESCRIPTION = """\
Schedule the external actions of agents in reinforcement learning: run commands in sandboxes, score items with reward
services and call external APIs.

**Errors.** An error is an RFC 9457 problem (`application/problem+json`). Its `code` is stable, and `errors` lists the
invalid fields. For a 500, search the logs for its `trace_id`. For 429 and 503, try again after the seconds in
`Retry-After`. A method that a path does not support returns 405 with `Allow`. A submission with an `Idempotency-Key`
can be repeated after any error.

**Absent fields.** A field without a value is absent, not null. In a request, null in an optional field means the same
as an absent field, except where the description of the field gives null a meaning. A list has `next_cursor` if more
items follow; pass it as `cursor` to get the next page.

**Compatibility.** Within `/v1`, later versions only add paths, fields, codes and enumeration values. Clients must
ignore those that they do not know.
"""
TAGS = [
    {"name": "actions", "description": "Submit actions, wait for their outcomes, follow their output and cancel them"},
    {"name": "trajectories", "description": "End rollouts, with all their actions and their environment"},
    {"name": "steps", "description": "Follow training steps: their progress, their slowest trajectory, and its waits"},
    {"name": "environments", "description": "Create and delete persistent sandboxes, and read and write their files"},
    {"name": "snapshots", "description": "Save the files of an environment and start other environments from them"},
    {"name": "reward-services", "description": "Score items, and register, list and operate reward services"},
    {"name": "endpoints", "description": "List the external APIs for actions of kind `call`, with their quotas"},
    {
        "name": "compatibility",
        "description": "Protocols that trainers and agents already use, for rewards, programs, environments and"
        " external APIs. Each route also exists below `/t/{task}`, `/reward-services/{name}` and both, and accepts"
        " `service`, `task`, `trajectory` and `step` in the query. SWE-ReX's runtime also exists below"
        " `/t/{task}/trajectories/{trajectory}/swerex`; the first use creates the environment",
    },
    {
        "name": "admin",
        "description": "Administer nodes, keys, projects and queues; read the audit log and the consistency check."
        " Requires a key with an `admin` scope",
    },
]
SERVERS = [
    {"url": "/", "description": "The gateway that serves this document"},
    {"url": "http://127.0.0.1:8700", "description": "A local system started with `tangram up`"},
]
PARAMETER_DESCRIPTIONS = {
    "cursor": "Value of `next_cursor` in the previous page. Absent: the first page",
    "disk_mib": "Disk of each additional action in MiB",
    "endpoint": "Name of the endpoint",
    "id": "Id of the resource",
    "limit": "Maximum number of items in the response",
    "memory_mib": "Memory of each additional action in MiB",
    "name": "Name of the resource",
    "path": "Path relative to the address of the endpoint",
    "state": "Return only items in this state",
    "task": "Return only items of this task",
    "trajectory": "Return only items of this trajectory",
    "verb": "Operation to apply",
}
"""Descriptions of parameters that have none of their own, by name."""
PATH_PARAMETER_DESCRIPTIONS = {"task": "Name of the task", "trajectory": "Name of the trajectory"}
"""The same for parameters in a path, where the meaning differs."""

Json = dict[str, Any]
NULL_SCHEMA = {"type": "null"}


def customize_openapi(app: FastAPI) -> None:
    """Add descriptions, tags and servers to the document, and post-process it."""
    app.description = DESCRIPTION
    app.openapi_tags = TAGS
    app.servers = SERVERS
    app.openapi = _CachedDocument(app.openapi)  # type: ignore[method-assign]


MEANINGFUL_NULLS = {
    *(("ChangeQueueRequest", name) for name in ("max_queued", "quota")),
    ("SwerexExecuteResponse", "exit_code"),
    ("SwerexBashObservation", "exit_code"),
    *(("CommandRunResult", name) for name in ("execution_time", "return_code")),
    *(("RunCodeResponse", name) for name in ("compile_result", "run_result", "executor_pod_name")),
}
"""Fields for which null has a meaning that omission does not have."""


class _CachedDocument:
    """A cache of the post-processed document. FastAPI rebuilds the document only after routes were added."""

    def __init__(self, build: Callable[[], Json]) -> None:
        self._build = build
        self._document: Json = {}

    def __call__(self) -> Json:
        document = self._build()
        if document is not self._document:
            _postprocess(document)
            self._document = document
        return document


def _postprocess(document: Json) -> None:
    for kind, schema in document["components"]["schemas"].items():
        required = schema.get("required", [])
        for name, value in schema.get("properties", {}).items():
            if name not in required and (kind, name) not in MEANINGFUL_NULLS:
                schema["properties"][name] = _without_null(value)
    for operation in (each for path in document["paths"].values() for each in path.values()):
        for parameter in operation.get("parameters", []):
            parameter["schema"] = _without_null(parameter["schema"])
            parameter.setdefault("description", _parameter_description(parameter))
        if examples := EXAMPLES.get(operation["operationId"]):
            _add_examples(operation["requestBody"], examples)
        for status, response in operation["responses"].items():
            if examples := RESPONSE_EXAMPLES.get((operation["operationId"], status)):
                _add_examples(response, examples)
    _make_portable(document)
    _require_discriminators(document)


def _require_discriminators(document: Json) -> None:
    """Require the field that tells the forms of a union apart, although one form may have a default for it."""
    schemas = document["components"]["schemas"]
    for union in _unions_of(document):
        field = union["discriminator"]["propertyName"]
        for choice in union["discriminator"]["mapping"].values():
            required = schemas[choice.rpartition("/")[2]].setdefault("required", [])
            if field not in required:
                required.append(field)


def _unions_of(value: Any) -> Iterator[Json]:
    """Yield every union with a discriminator in a part of the document."""
    if isinstance(value, dict):
        if "mapping" in value.get("discriminator", {}):
            yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _unions_of(each)


def _make_portable(value: Any) -> None:
    """Change schemas, at any depth, to forms that the generators of all languages read."""
    if isinstance(value, list):
        for each in value:
            _make_portable(each)
    if not isinstance(value, dict):
        return
    for name, each in value.items():
        if name not in ("examples", "example", "default", "enum"):
            _make_portable(each)
    if value.get("type") in ("integer", "number") and "format" not in value:
        value["format"] = _number_format(value)
    _type_values_of_patterns(value)
    _make_unions_portable(value)


def _type_values_of_patterns(schema: Json) -> None:
    """Move the only pattern of an object's keys to `propertyNames`. Generators give `patternProperties` no type."""
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict) and len(patterns) == 1 and "additionalProperties" not in schema:
        del schema["patternProperties"]
        ((pattern, schema["additionalProperties"]),) = patterns.items()
        schema["propertyNames"] = {**schema.get("propertyNames", {}), "pattern": pattern}


def _make_unions_portable(schema: Json) -> None:
    """Remove what Go and Java cannot express: defaults of unions, and unions with arrays."""
    choices = [choice for name in ("anyOf", "oneOf") for choice in schema.get(name, []) if isinstance(choice, dict)]
    if not choices:
        return
    if (default := schema.pop("default", None)) is not None:
        _append_sentence(schema, f"Default: `{json.dumps(default)}`")
    if any(choice.get("type") == "array" for choice in choices):
        for name in ("anyOf", "oneOf"):
            schema.pop(name, None)
        _append_sentence(schema, " or ".join(map(_choice_name, choices)))


def _append_sentence(schema: Json, sentence: str) -> None:
    schema["description"] = f"{schema['description']}. {sentence}" if "description" in schema else sentence


def _number_format(schema: Json) -> str:
    """Return the format that the range of a number needs. Without a format, generators choose 32 bits."""
    if schema["type"] == "number":
        return "double"
    lows = [schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema]
    highs = [schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema]
    is_small = bool(lows and highs) and min(lows) >= -(2**31) and max(highs) < 2**31
    return "int32" if is_small else "int64"


def _choice_name(schema: Json) -> str:
    """Return the name of one form. Java has no type for a union with an array, so the description names the forms."""
    if schema.get("type") == "array":
        return f"array of {_choice_name(schema.get('items', {}))}"
    return str(schema.get("type") or schema.get("$ref", "value").rpartition("/")[2])


def _add_examples(body: Json, examples: Mapping[str, Any]) -> None:
    for media_type in body["content"].values():
        media_type["examples"] = examples


def _parameter_description(parameter: Json) -> str:
    found = PATH_PARAMETER_DESCRIPTIONS.get(parameter["name"]) if parameter["in"] == "path" else None
    return found or PARAMETER_DESCRIPTIONS.get(parameter["name"]) or parameter["schema"].get("description", "")


def _without_null(schema: Json) -> Json:
    """Return the schema without null and without objects as defaults.

    Generators create extra types for null and cannot create default objects. Omitting the field means the same.
    Requests may contain null in every optional field (`arl_kit.optional_nulls`); the description of the API says so.
    """
    kept = {key: value for key, value in schema.items() if not (key == "default" and isinstance(value, dict | None))}
    choices = [choice for choice in kept.get("anyOf", []) if choice != NULL_SCHEMA]
    if len(choices) == len(kept.get("anyOf", [])):
        return kept
    del kept["anyOf"]
    return {**choices[0], **kept} if len(choices) == 1 else {"anyOf": choices, **kept}


def _render_document() -> str:
    """Return the document; equal code gives equal bytes."""
    from arl_gateway.app import build
    from arl_gateway.settings import GatewaySettings

    unused = {
        "port": 1,
        "database_url": "postgresql://",
        "service_token": "-" * 16,
        "admission_url": "http://",
        "scheduler_url": "http://",
    }
    app = build(GatewaySettings.model_validate(unused))
    return json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(_render_document())
