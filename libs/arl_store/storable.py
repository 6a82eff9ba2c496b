"""Texts that Postgres takes, whatever they were."""

import json
import re
from typing import Any

__all__ = ["storable", "storable_json"]

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""No text in Postgres has one of these."""


def storable(text: str | None) -> str | None:
    """With U+FFFD where Postgres would refuse a character, and with it the whole statement for ever."""
    return None if text is None else UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def storable_json(document: str | None) -> str | None:
    """As `storable`, of every text in a document that `json.dumps` wrote."""
    # Escaped, each of these begins so. Most documents have none, and are not read again.
    if document is None or ("\\u0000" not in document and "\\ud" not in document):
        return document
    return json.dumps(_storable_value(json.loads(document)))


def _storable_value(value: Any) -> Any:
    match value:
        case str():
            return storable(value)
        case list():
            return [_storable_value(each) for each in value]
        case dict():
            return {storable(name): _storable_value(each) for name, each in value.items()}
        case _:
            return value
