"""Checks and field types that models share: text, bytes, resource names and output streams."""

import binascii
import json
import posixpath
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, EncodedBytes, EncoderProtocol, Field, StringConstraints
from pydantic_core import PydanticCustomError

__all__ = [
    "RESERVED_NAMES",
    "Base64",
    "CustomResources",
    "OutputStream",
    "ResourceName",
    "StrictBase64",
    "StrictModel",
    "UserName",
    "is_too_deep",
    "validate_argument",
    "validate_no_nul",
    "validate_relative_path",
    "validate_small_json",
    "validate_unicode",
]


MAX_ARGUMENT_BYTES = (128 << 10) - 130
"""Maximum bytes of an argument, including its end and, for a variable, the name before the value."""
MAX_JSON_CHARACTERS = 64 << 10
MAX_DEPTH = 64
"""Maximum nesting of arrays and objects, so that recursive JSON parsers can read it."""

RESERVED_NAMES = frozenset(
    {
        *("cpu", "cpu_milli", "cpu_cores", "cores", "memory", "memory_mib", "memory_bytes", "disk", "disk_mib"),
        *("disk_bytes", "pids", "gpu", "concurrency", "slots"),
    }
)
"""Names with fields of their own, names that nodes cannot declare, and metric names of built-in resources."""

MAX_AMOUNT = 1 << 40


def validate_no_nul(text: str) -> str:
    """Return the text; raise ValueError if it contains a NUL character or lone surrogates."""
    if "\x00" in text:
        raise ValueError("must not contain NUL characters")
    return validate_unicode(text)


def validate_unicode(text: str) -> str:
    """Return the text; raise ValueError if it cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode without lone surrogates") from None
    return text


def validate_argument(text: str) -> str:
    """Return the argument or variable value; raise ValueError if it exceeds MAX_ARG_STRLEN of Linux (execve(2))."""
    if (length := len(text.encode())) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"has {length} bytes; Linux accepts at most {MAX_ARGUMENT_BYTES}: use files or stdin")
    return text


def validate_small_json(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document if Postgres can store it and it has at most 64 KiB; raise ValueError otherwise."""
    if is_too_deep(document):
        raise ValueError(f"has more than {MAX_DEPTH} nested levels")
    written = json.dumps(document, ensure_ascii=False, allow_nan=False)
    if len(written) > MAX_JSON_CHARACTERS:
        raise ValueError(f"has {len(written)} characters as JSON; at most {MAX_JSON_CHARACTERS} are allowed")
    _validate_storable(document)
    return document


def is_too_deep(value: Any) -> bool:
    """Return True if the value is nested more than 64 levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [each for whole in level for each in _children(whole)]
    return any(isinstance(each, dict | list) for each in level)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _validate_storable(value: Any) -> None:
    if isinstance(value, str):
        validate_no_nul(value)
    elif isinstance(value, dict | list):
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            _validate_storable(each)


def validate_relative_path(path: str) -> str:
    """Return the path; raise ValueError if it is absolute or leaves the working directory."""
    if path.startswith("/") or ".." in path.split("/") or posixpath.normpath(path) == ".":
        raise ValueError("must be a relative path below the working directory, without `..`")
    return path


class StrictBase64(EncoderProtocol):
    """RFC 4648 §4 base64. Pydantic's own decoder drops invalid characters and so changes files silently."""

    @classmethod
    def decode(cls, data: bytes) -> bytes:
        """Return the decoded bytes; raise a validation error for any invalid character."""
        try:
            return b64decode(data, validate=True)
        except binascii.Error as error:
            raise PydanticCustomError(
                "base64_decode", "is not valid base64: {reason}", {"reason": str(error)}
            ) from None

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return the bytes as standard base64 with padding."""
        return b64encode(value)

    @classmethod
    def get_json_format(cls) -> str:
        return "base64"


Base64 = Annotated[bytes, EncodedBytes(encoder=StrictBase64)]


class StrictModel(BaseModel):
    """A model of client input; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_not_reserved(name: str) -> str:
    if name in RESERVED_NAMES:
        raise ValueError(f"`{name}` is a built-in resource with its own field: use another name")
    return name


ResourceName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9_]*([./-][a-z0-9_]+)*$", max_length=64),
    AfterValidator(_check_not_reserved),
]
CustomResources = Annotated[dict[ResourceName, Annotated[int, Field(ge=1, le=MAX_AMOUNT)]], Field(max_length=16)]
"""Amounts in whole units; the resource defines the unit, such as a device or Mbit/s."""


class OutputStream(BaseModel):
    """The first MiB of a stream, and its total size."""

    text: str = Field(default="", description="Text as UTF-8. Invalid bytes are written as \\xNN")
    base64: str | None = Field(
        default=None, description="The same bytes in base64. Present only if they are not valid UTF-8"
    )
    total_bytes: int = 0
    truncated: bool = False


MAX_UID = 65_534
"""Largest id of a user in an environment."""


def _validate_ids(user: str) -> str:
    if any(part.isdecimal() and (len(part) > 5 or int(part) > MAX_UID) for part in user.split(":")):
        raise ValueError(f"an id must be at most {MAX_UID}")
    return user


UserName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*[$]?(:[A-Za-z0-9_][A-Za-z0-9_.-]*[$]?)?$", min_length=1, max_length=128
    ),
    AfterValidator(_validate_ids),
]
