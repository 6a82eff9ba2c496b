"""`openapi/gateway.json` matches the served API, and client generators can read it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from arl_gateway.app import build
from arl_gateway.examples import EXAMPLES as EXAMPLES_BY_OPERATION
from arl_gateway.openapi import MEANINGFUL_NULLS
from arl_gateway.response_examples import RESPONSE_EXAMPLES
from arl_gateway.settings import GatewaySettings

COMMITTED = Path(__file__).parents[3] / "openapi" / "gateway.json"
SETTINGS = GatewaySettings(
    port=1,
    database_url="postgresql://nobody",
    service_token="t" * 16,
    admission_url="http://nobody",
    scheduler_url="http://nobody",
)
DOCUMENT: dict[str, Any] = build(SETTINGS).openapi()
OPERATIONS = {operation["operationId"]: operation for path in DOCUMENT["paths"].values() for operation in path.values()}
OF_SWEREX = "511"
"""The status of SWE-ReX exceptions. Their client does not read problem details."""
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def inside(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a document."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from inside(child)


def test_committed_openapi_document_matches_served_api() -> None:
    written = subprocess.run([sys.executable, "-m", "arl_gateway.openapi"], capture_output=True, check=True).stdout
    assert written == COMMITTED.read_bytes(), "the API has changed: run `make openapi`"


def test_document_has_only_forms_that_generators_of_all_languages_read() -> None:
    for schema in inside(DOCUMENT):
        assert "itemSchema" not in schema, "OpenAPI 3.2"
        if schema.get("type") in ("integer", "number"):
            assert schema["format"] in ("int32", "int64", "double"), schema
        assert "patternProperties" not in schema, "generators give the values no type"
        choices = schema.get("anyOf", []) + schema.get("oneOf", [])
        assert not any(choice.get("type") == "array" for choice in choices), "Java has no such type"
        assert not (choices and "default" in schema), "Go cannot write it"


def test_integer_format_follows_from_the_range() -> None:
    assert SCHEMAS["OutputStream"]["properties"]["total_bytes"]["format"] == "int64"
    assert SCHEMAS["ActionResult"]["properties"]["exit_code"]["format"] == "int64"
    assert SCHEMAS["SubmitActionRequest"]["properties"]["retries"]["format"] == "int32"


def test_every_operation_has_unique_name_and_one_described_tag() -> None:
    described = {tag["name"] for tag in DOCUMENT["tags"]}
    assert len(OPERATIONS) == sum(len(path) for path in DOCUMENT["paths"].values())
    assert all(name.isidentifier() and "_v1_" not in name for name in OPERATIONS)
    assert all(len(each["tags"]) == 1 and each["tags"][0] in described for each in OPERATIONS.values())


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_requires_a_key_and_documents_its_errors(operation: dict[str, Any]) -> None:
    assert operation["security"] == [{"ApiKey": []}]
    assert operation["description"]
    assert {"401", "403", "422", "429", "500", "503"} <= set(operation["responses"])
    for status, response in operation["responses"].items():
        if status >= "400" and status != OF_SWEREX:
            assert response["content"] == {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
            }


def test_union_of_objects_names_its_discriminator_field() -> None:
    unions = [each for each in inside(SCHEMAS) if sum("$ref" in choice for choice in each.get("oneOf", [])) > 1]
    assert unions
    for union in unions:
        field = union["discriminator"]["propertyName"]
        for choice in union["oneOf"]:
            assert field in SCHEMAS[choice["$ref"].rpartition("/")[2]]["required"]
        assert set(union["discriminator"]["mapping"].values()) == {choice["$ref"] for choice in union["oneOf"]}
    assert not [each for each in inside(SCHEMAS) if sum("$ref" in choice for choice in each.get("anyOf", [])) > 1]


def test_document_avoids_constructs_that_client_generators_reject() -> None:
    assert not [each for each in inside(DOCUMENT) if "prefixItems" in each]
    assert not [name for name in SCHEMAS if name.endswith(("-Input", "-Output"))]
    for name, schema in SCHEMAS.items():
        for field, value in schema.get("properties", {}).items():
            may_be_null = {"type": "null"} in value.get("anyOf", [])
            says_two_things = (name, field) in MEANINGFUL_NULLS or field in schema.get("required", [])
            assert not may_be_null or says_two_things, f"{name}.{field} can be absent, and null too"
            assert not isinstance(value.get("default"), dict), f"{name}.{field} has an object as its default"


MAX_SUMMARY_WORDS = 6
WITHOUT_EXAMPLE = {"application/x-tar", ("write_archive", "application/octet-stream")}
"""Bodies that are tar archives."""
BODIES = [
    pytest.param(media, status == "request", id=f"{name}-{status}-{content_type}")
    for name, operation in OPERATIONS.items()
    for status, message in {"request": operation.get("requestBody", {}), **operation["responses"]}.items()
    if status == "request" or status.startswith("2")
    for content_type, media in message.get("content", {}).items()
    if not WITHOUT_EXAMPLE & {content_type, (name, content_type)}
]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operation_has_a_short_summary_and_a_description(operation: dict[str, Any]) -> None:
    assert 2 <= len(operation["summary"].split()) <= MAX_SUMMARY_WORDS
    assert operation["description"].rstrip().endswith(".")
    assert operation["description"].rstrip(".") != operation["summary"]


def test_summaries_of_operations_are_unique() -> None:
    summaries = [each["summary"] for name, each in OPERATIONS.items() if not name.endswith("_root")]
    assert len(summaries) == len(set(summaries))


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_parameters_of_operation_have_descriptions(operation: dict[str, Any]) -> None:
    assert [each["name"] for each in operation.get("parameters", []) if not each.get("description")] == []


@pytest.mark.parametrize(("media", "is_request"), BODIES)
def test_body_has_valid_examples(media: dict[str, Any], is_request: bool) -> None:
    assert media["examples"]
    schemas = SCHEMAS if is_request else {name: closed(each) for name, each in SCHEMAS.items()}
    validator = jsonschema_rs.Draft202012Validator({**media.get("schema", {}), "components": {"schemas": schemas}})
    for example in media["examples"].values():
        assert example["summary"]
        assert [error.message for error in validator.iter_errors(example["value"])] == []


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object without unknown fields, so that a misspelled field of an example is an error."""
    return {"additionalProperties": False, **schema} if "properties" in schema else schema


def test_examples_belong_to_operations_of_the_document() -> None:
    assert set(EXAMPLES_BY_OPERATION) <= set(OPERATIONS)
    for name, status in RESPONSE_EXAMPLES:
        assert OPERATIONS[name]["responses"][status]["content"]
