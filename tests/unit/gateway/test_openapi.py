"""`openapi/gateway.json` is what the gateway serves, and what a generator of clients can read."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from arl_gateway.app import build
from arl_gateway.examples import EXAMPLES as EXAMPLES_BY_OPERATION
from arl_gateway.examples import RESPONSE_EXAMPLES
from arl_gateway.openapi import MEANINGFUL_NULLS
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
"""Its exceptions are raised by its own client, which reads no problems."""
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def inside(node: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from inside(child)


def test_the_committed_document_is_the_one_that_is_served() -> None:
    written = subprocess.run([sys.executable, "-m", "arl_gateway.openapi"], capture_output=True, check=True).stdout
    assert written == COMMITTED.read_bytes(), "the API has changed: run `make openapi`"


def test_every_operation_has_a_name_of_its_own_and_one_described_tag() -> None:
    described = {tag["name"] for tag in DOCUMENT["tags"]}
    assert len(OPERATIONS) == sum(len(path) for path in DOCUMENT["paths"].values())
    assert all(name.isidentifier() and "_v1_" not in name for name in OPERATIONS)
    assert all(len(each["tags"]) == 1 and each["tags"][0] in described for each in OPERATIONS.values())


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_takes_a_key_and_documents_its_problems(operation: dict[str, Any]) -> None:
    assert operation["security"] == [{"ApiKey": []}]
    assert operation["description"]
    assert {"401", "403", "422", "429", "500", "503"} <= set(operation["responses"])
    for status, response in operation["responses"].items():
        if status >= "400" and status != OF_SWEREX:
            assert response["content"] == {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
            }


def test_a_union_of_objects_says_by_which_field_they_differ() -> None:
    unions = [each for each in inside(SCHEMAS) if sum("$ref" in choice for choice in each.get("oneOf", [])) > 1]
    assert unions
    for union in unions:
        assert set(union["discriminator"]["mapping"].values()) == {choice["$ref"] for choice in union["oneOf"]}
    assert not [each for each in inside(SCHEMAS) if sum("$ref" in choice for choice in each.get("anyOf", [])) > 1]


def test_nothing_is_in_it_that_generators_stumble_over() -> None:
    assert not [each for each in inside(DOCUMENT) if "prefixItems" in each]
    assert not [name for name in SCHEMAS if name.endswith(("-Input", "-Output"))]
    for name, schema in SCHEMAS.items():
        for field, value in schema.get("properties", {}).items():
            may_be_null = {"type": "null"} in value.get("anyOf", [])
            says_two_things = (name, field) in MEANINGFUL_NULLS or field in schema.get("required", [])
            assert not may_be_null or says_two_things, f"{name}.{field} can be absent, and null too"
            assert not isinstance(value.get("default"), dict), f"{name}.{field} has an object as its default"


EXAMPLES = [
    pytest.param(body["schema"], example["value"], id=f"{name}-{key}")
    for name, operation in OPERATIONS.items()
    for body in operation.get("requestBody", {}).get("content", {}).values()
    for key, example in body.get("examples", {}).items()
]
EXAMPLES += [
    pytest.param(body["schema"], example["value"], id=f"{name}-response-{key}")
    for name, operation in OPERATIONS.items()
    for body in operation["responses"].get("200", {}).get("content", {}).values()
    for key, example in body.get("examples", {}).items()
]


@pytest.mark.parametrize(("schema", "example"), EXAMPLES)
def test_an_example_fits_its_schema(schema: dict[str, Any], example: Any) -> None:
    whole = {**schema, "components": DOCUMENT["components"]}
    assert [error.message for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(example)] == []


def test_the_operations_that_take_json_have_examples() -> None:
    takes_json = {
        name
        for name, operation in OPERATIONS.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    assert set(EXAMPLES_BY_OPERATION) == takes_json


def test_response_examples_of_known_operations_are_in_the_document() -> None:
    shown = {
        name
        for name, operation in OPERATIONS.items()
        if operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("examples")
    }
    assert shown == set(RESPONSE_EXAMPLES)
