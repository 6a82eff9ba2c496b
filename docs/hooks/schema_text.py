"""JSON schemas of the OpenAPI document as Markdown: types, fields and examples."""

import json
from collections.abc import Mapping
from typing import Any

from markdown_text import cell, code, table

__all__ = ["Schema", "example_of", "field_notes", "fields_table", "schema_link", "type_text"]

Schema = Mapping[str, Any]
_BOUNDS = (
    ("minimum", "maximum", ""),
    ("exclusiveMinimum", "exclusiveMaximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minProperties", "maxProperties", " entries"),
)
_MAX_DEPTH = 4


def schema_link(name: str) -> str:
    return f"[{name}](#schema-{name.lower()})"


def type_text(schema: Schema) -> str:
    """Return the type as Markdown, with links to named schemas."""
    if "$ref" in schema:
        return schema_link(_ref_name(schema))
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(type_text(each) for each in schema[key]))
    if "enum" in schema or "const" in schema:
        return " ".join(code(str(each)) for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        return f"array of {type_text(schema.get('items', {}))}"
    if kind == "object":
        values = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
        named = [type_text(each) for each in values if isinstance(each, Mapping) and each]
        return f"object of {named[0]}" if named else "object"
    if isinstance(kind, list):
        return " or ".join(kind)
    return f"{kind} ({schema['format']})" if kind and "format" in schema else str(kind or "any")


def fields_table(schema: Schema) -> str:
    """Return a table of the fields, or the type of a schema that has none."""
    fields = schema.get("properties", {})
    if not fields:
        return f"{type_text(schema)}\n"
    required = schema.get("required", ())
    rows = [
        [code(name), type_text(field), field_notes(field, required=name in required)] for name, field in fields.items()
    ]
    return table(["Field", "Type", "Description"], rows)


def field_notes(field: Schema, *, required: bool) -> str:
    """Return the description of a field with its default and its limits."""
    parts = [cell(field.get("description", "")).rstrip(".")]
    if required:
        parts.append("Required")
    if "default" in field and field["default"] not in ("", None):
        parts.append(f"Default: {code(json.dumps(field['default']))}")
    parts.extend(_bounds(field))
    return ". ".join(part for part in parts if part) + ("." if any(parts) else "")


def example_of(schema: Schema, schemas: Mapping[str, Schema], depth: int = 0) -> Any:
    """Return a value that fits the schema: its example, its default, or one that is made from the required fields."""
    if "$ref" in schema:
        return example_of(schemas[_ref_name(schema)], schemas, depth)
    if examples := schema.get("examples"):
        return examples[0]
    for key in ("example", "default", "const"):
        if schema.get(key) is not None:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return example_of(schema[key][0], schemas, depth)
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        fields = schema.get("properties", {})
        shown = schema.get("required", ()) if depth < _MAX_DEPTH else ()
        return {name: example_of(fields[name], schemas, depth + 1) for name in shown}
    if kind == "array":
        count = 1 if schema.get("minItems") else 0
        return [example_of(schema.get("items", {}), schemas, depth + 1)] * count
    numbers = {"integer": 1, "number": 1.0, "boolean": True, "null": None}
    return numbers[kind] if isinstance(kind, str) and kind in numbers else "string"


def _bounds(field: Schema) -> list[str]:
    found = []
    for low, high, unit in _BOUNDS:
        smallest, largest = field.get(low), field.get(high)
        is_open = low.startswith("exclusive")
        if smallest is not None and largest is not None:
            found.append(f"{_number(smallest)} to {_number(largest)}{unit}")
        elif smallest:
            found.append(f"{'More than' if is_open else 'At least'} {_number(smallest)}{unit}")
        elif largest is not None:
            found.append(f"{'Less than' if is_open else 'At most'} {_number(largest)}{unit}")
    return found


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _ref_name(schema: Schema) -> str:
    return str(schema["$ref"]).rsplit("/", 1)[-1]
