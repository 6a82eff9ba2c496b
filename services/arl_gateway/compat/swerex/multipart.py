"""The form that SWE-ReX's client uploads files by (RFC 7578): read as a whole, for it is bounded."""

from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any

from fastapi import Request

from arl_wire.errors import FieldError, UnsupportedMediaType, ValidationFailed

__all__ = ["UPLOAD", "Uploaded", "fields_of", "uploaded"]

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
    """By name; what stands before the first boundary and after the last is nobody's."""
    found = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:]:
        if part.startswith(b"--"):
            break
        head, ends, content = part.partition(b"\r\n\r\n")
        if not ends:
            continue
        headers = BytesHeaderParser().parsebytes(head.lstrip() + b"\r\n\r\n")
        name = headers.get_param("name", header="content-disposition")
        if isinstance(name, str):
            found[name] = content
    return found
