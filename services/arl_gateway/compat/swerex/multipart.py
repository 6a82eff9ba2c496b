"""The form that SWE-ReX's client uploads files by (RFC 7578): read as a whole, for it is bounded."""

import re
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any

from fastapi import Request

from arl_wire.errors import FieldError, UnsupportedMediaType, ValidationFailed

__all__ = ["UPLOAD", "Uploaded", "fields_of", "uploaded"]

BOUNDARY = re.compile(rb"[\x21-\x7e]([\x20-\x7e]{0,68}[\x21-\x7e])?")
"""RFC 2046, section 5.1.1."""
MOST_PARTS, LONGEST_HEAD = 16, 8 << 10
TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
FORM = {
    "type": "object",
    "required": ["file", "target_path"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "target_path": {"type": "string"},
        "unzip": {"type": "boolean", "default": False},
    },
}
UPLOAD: dict[str, Any] = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}}}


@dataclass(frozen=True, slots=True)
class Uploaded:
    target: str
    content: bytes
    is_archive: bool


async def uploaded(request: Request) -> Uploaded:
    """Raises UnsupportedMediaType and ValidationFailed."""
    about = Message()
    about["content-type"] = request.headers.get("content-type", "")
    boundary = about.get_param("boundary")
    if about.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        message = "is not multipart/form-data with a boundary"
        raise UnsupportedMediaType(
            f"the body's content-type {message}", errors=[FieldError(field="header.Content-Type", message=message)]
        )
    fields = fields_of(await request.body(), boundary.encode("latin-1", "replace"))
    for name in ("file", "target_path"):
        if not fields.get(name) and not (name == "file" and name in fields):
            raise ValidationFailed(f"{name}: is missing", errors=[FieldError(field=name, message="is missing")])
    is_archive = fields.get("unzip", b"").decode(errors="replace").strip().lower() in TRUE
    return Uploaded(fields["target_path"].decode(errors="replace"), fields["file"], is_archive)


def fields_of(body: bytes, boundary: bytes) -> dict[str, bytes]:
    """By name; what stands before the first boundary and after the last is nobody's. Raises ValidationFailed.

    Each byte is looked at once, and few of them by Python.
    """
    mark, found = b"--" + boundary, dict[str, bytes]()
    at = 0 if body.startswith(mark) else _after(body.find(b"\r\n" + mark), 2)
    for _ in range(MOST_PARTS + 1):
        if BOUNDARY.fullmatch(boundary) is None or at < 0:
            break
        at += len(mark)
        if body.startswith(b"--", at):
            return found
        head_end = body.find(b"\r\n\r\n", at, at + LONGEST_HEAD)
        end = body.find(b"\r\n" + mark, max(head_end, at))
        if head_end < 0 or end < 0:
            break
        name = _name_in(body[at:head_end])
        if name is not None:
            found[name] = body[head_end + 4 : end]
        at = end + 2
    message = f"is no form of at most {MOST_PARTS} parts that ends with its boundary"
    raise ValidationFailed(f"body: {message}", errors=[FieldError(field="body", message=message)])


def _after(found: int, length: int) -> int:
    return found + length if found >= 0 else -1


def _name_in(head: bytes) -> str | None:
    headers = BytesHeaderParser().parsebytes(head.lstrip() + b"\r\n\r\n")
    name = headers.get_param("name", header="content-disposition")
    return name if isinstance(name, str) else None
