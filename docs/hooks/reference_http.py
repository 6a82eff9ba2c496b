"""The page `reference/http-api`: every operation and schema of the OpenAPI document.

The site has no script for it: the page is searchable, works without other hosts and prints well. OpenAPI plugins of
MkDocs were tried; neoteroi-mkdocs 1.2 makes a page of 8.5 MB for this document, with schemas as raw JSON.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from markdown_text import anchor, cell, code, table
from schema_text import Schema, example_of, field_notes, fields_table, type_text

__all__ = ["document", "operations", "render"]

DOCUMENT = Path(__file__).parents[2] / "openapi" / "gateway.json"
METHODS = ("get", "head", "post", "put", "patch", "delete")
INTRO = """\
# HTTP API

The base URL is the address of the gateway, `http://127.0.0.1:8700` after `tangram up`. Send an API key as
`Authorization: Bearer KEY` or as `x-api-key: KEY`. Each running gateway has this document at `/openapi.json`
(OpenAPI 3.1). [Clients in any language](../guides/any-language.md) shows how to generate a client.
"""
SHARED_ERRORS = ("401", "403", "429", "500", "503")
"""Statuses that every operation may return; the page names them once."""
ERRORS_NOTE = """\
Every operation may also return 401, 403, 429, 500 or 503, see [Errors](errors.md).
"""
PLACEHOLDERS = {"id": "ID", "path": "PATH", "name": "NAME", "task": "TASK"}


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DOCUMENT.read_text())
    return loaded


def operations(openapi: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the method, path and description of every operation."""
    for path, methods in openapi["paths"].items():
        yield from ((method, path, methods[method]) for method in METHODS if method in methods)


def render() -> str:
    openapi = document()
    schemas = openapi["components"]["schemas"]
    parts = [INTRO, openapi["info"]["description"], ERRORS_NOTE]
    for tag in openapi["tags"]:
        found = [each for each in operations(openapi) if tag["name"] in each[2]["tags"]]
        parts += [
            f"## {_tag_title(tag['name'])} {anchor('tag-' + tag['name'])}\n",
            f"{tag['description'].rstrip('.')}.\n",
        ]
        parts.append(_overview(found))
        parts += [_operation(method, path, operation, schemas) for method, path, operation in found]
    parts += [f"## Schemas {anchor('schemas')}\n"]
    for name, schema in sorted(schemas.items()):
        parts.append(f"### {name} {anchor(f'schema-{name.lower()}')}\n")
        parts += [f"{schema['description']}\n"] if "description" in schema else []
        parts.append(fields_table(schema))
    return "\n".join(parts)


def _tag_title(name: str) -> str:
    return name.replace("-", " ").capitalize()


def _overview(found: list[tuple[str, str, dict[str, Any]]]) -> str:
    rows = (
        [code(method.upper()), f"[{code(path)}](#{operation['operationId']})", cell(_summary(operation))]
        for method, path, operation in found
    )
    return table(["Method", "Path", "Operation"], rows)


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Schema]) -> str:
    parts = [
        f"### {_summary(operation)} {anchor(operation['operationId'])}\n",
        f"```text\n{method.upper()} {path}\n```\n",
        f"{operation.get('description', '')}\n",
    ]
    if parameters := operation.get("parameters"):
        parts.append(_parameters(parameters))
    body = _body(operation)
    if body is not None:
        kind, content = body
        parts.append(f"Body ({code(kind)}): {type_text(content.get('schema', {}))}\n")
        parts += _examples(content)
    parts.append(f"```bash\n{_curl(method, path, operation, schemas)}\n```\n")
    parts += _responses(operation["responses"])
    return "\n".join(parts)


def _summary(operation: Mapping[str, Any]) -> str:
    """Return the summary as a sentence starts: `Submit Action` is `Submit action`."""
    first, *rest = str(operation["summary"]).split(" ")
    return " ".join([first, *(word if word.isupper() or not word.istitle() else word.lower() for word in rest)])


def _parameters(parameters: list[dict[str, Any]]) -> str:
    rows = []
    for each in parameters:
        field = {**each["schema"], "description": each.get("description", "")}
        required = bool(each.get("required")) and each["in"] != "path"
        rows.append([code(each["name"]), each["in"], type_text(field), field_notes(field, required=required)])
    return table(["Parameter", "In", "Type", "Description"], rows)


def _body(operation: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    content = operation.get("requestBody", {}).get("content", {})
    return next(iter(content.items()), None)


def _examples(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the named examples; the first one is in the command below."""
    for example in list(content.get("examples", {}).values())[1:]:
        yield _json_block(str(example.get("summary", "Example")), example["value"])


def _curl(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Schema]) -> str:
    """Return a command that performs the operation."""
    address = re.sub(r"\{(\w+)\}", lambda name: PLACEHOLDERS.get(name[1], name[1].upper()), path)
    query = [f"{each['name']}={_value(each, schemas)}" for each in operation.get("parameters", ()) if _in_query(each)]
    url = f"$TANGRAM_URL{address}{'?' if query else ''}{'&'.join(query)}"
    verb = {"get": "", "head": " --head"}.get(method, f" -X {method.upper()}")
    lines = [f'curl{verb} "{url}"', '-H "Authorization: Bearer $TANGRAM_API_KEY"']
    body = _body(operation)
    if body is not None:
        kind, content = body
        if kind.endswith("json"):
            named = list(content.get("examples", {}).values())
            value = named[0]["value"] if named else content.get("example", example_of(content["schema"], schemas))
            lines += [f"-H 'Content-Type: {kind}'", f"-d {shlex.quote(json.dumps(value, ensure_ascii=False))}"]
        elif kind.startswith("multipart/"):
            lines.append("-F file=@FILE")
        else:
            lines += [f"-H 'Content-Type: {kind}'", "--data-binary @FILE"]
    return " \\\n     ".join(lines)


def _in_query(parameter: Mapping[str, Any]) -> bool:
    return parameter["in"] == "query" and bool(parameter.get("required"))


def _value(parameter: Mapping[str, Any], schemas: Mapping[str, Schema]) -> str:
    name = str(parameter["name"])
    return PLACEHOLDERS.get(name) or str(example_of(parameter["schema"], schemas))


def _responses(responses: Mapping[str, Any]) -> Iterator[str]:
    """Yield the results, their examples and the error codes."""
    rows, errors = [], []
    for status, response in responses.items():
        text = str(response["description"])
        if int(status) >= HTTPStatus.BAD_REQUEST:
            codes = (f"[{code(each.strip())}](errors.md#codes)" for each in text.split(","))
            errors += [f"{status} {' '.join(codes)}"] if status not in SHARED_ERRORS else []
            continue
        kinds = [f"{_schema(each)} ({code(kind)})" for kind, each in response.get("content", {}).items()]
        rows.append([status, " or ".join(kinds), cell(text.replace("Successful Response", "Success"))])
    yield table(["Status", "Body", "Meaning"], rows)
    for content in (each for response in responses.values() for each in response.get("content", {}).values()):
        for name, example in content.get("examples", {}).items():
            yield _json_block(f"Response: {example.get('summary', name)}", example["value"])
    if errors:
        yield f"Errors: {', '.join(sorted(errors))}.\n"


def _json_block(title: str, value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return '```json title="{}"\n{}\n```\n'.format(title.replace('"', "'"), text)


def _schema(content: Mapping[str, Any]) -> str:
    return type_text(content["schema"]) if content.get("schema") else "any"
