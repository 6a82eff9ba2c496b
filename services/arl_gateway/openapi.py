"""The gateway's OpenAPI document, in a form that client generators read without losses.

`python -m arl_gateway.openapi` writes it to standard output; `make openapi` updates `openapi/gateway.json`.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from arl_gateway.examples import EXAMPLES, RESPONSE_EXAMPLES

__all__ = ["customize_openapi"]

DESCRIPTION = """\
Schedules single actions of agents in training: run a command, get its outcome.

An error is an RFC 9457 problem (`application/problem+json`): act on its `code`, which is stable; `errors` names the
fields, `trace_id` is that of the request, by which the error behind a 500 is found in our logs. 429 and 503 say in
`Retry-After` when to come back. A path that has no such method answers 405 with `Allow`. With an `Idempotency-Key` a
submission may be sent again after any of them.

What is not there is absent and never null. A list has `next_cursor` while there is more of it; give it as `cursor`.
Within `/v1` paths, fields, codes and values of enumerations are only added; ignore those that you do not know.
"""
TAGS = [
    {"name": "actions", "description": "Submit bounded commands, wait for their outcomes, follow and cancel them"},
    {"name": "trajectories", "description": "Rollouts: what belongs to one ends with it"},
    {"name": "environments", "description": "Sandboxes that are kept between actions, and the files in them"},
    {"name": "snapshots", "description": "What was written in an environment, for others to begin with"},
    {"name": "reward-services", "description": "Reward models that score actions are answered by, and where they are"},
    {"name": "endpoints", "description": "External APIs that actions of kind `call` are answered by, and their quotas"},
    {
        "name": "compatibility",
        "description": "Protocols that trainers and agents speak already, for rewards, programs and environments; each "
        "also below `/t/{task}`, `/reward-services/{name}` and both, and with `service`, `task`, `trajectory` and "
        "`step` in the query; SWE-ReX's runtime also below `/t/{task}/trajectories/{trajectory}/swerex`, for an "
        "environment that its first use makes",
    },
    {
        "name": "admin",
        "description": "Nodes, keys, projects, queues, the audit log and the consistency check; takes a key with "
        "an `admin` scope",
    },
]
SERVERS = [
    {"url": "/", "description": "The gateway that this document comes from"},
    {"url": "http://127.0.0.1:8700", "description": "`tangram up` on this machine"},
]

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
        if examples := EXAMPLES.get(operation["operationId"]):
            operation["requestBody"]["content"]["application/json"]["examples"] = examples
        if examples := RESPONSE_EXAMPLES.get(operation["operationId"]):
            operation["responses"]["200"]["content"]["application/json"]["examples"] = examples


def _without_null(schema: Json) -> Json:
    """Return the schema without null and without objects as defaults.

    Generators create extra types for null and cannot create default objects. Omitting the field means the same.
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
