"""The form with which SWE-ReX's client uploads files (RFC 7578). Its size is limited, so it is read as a whole."""

import logging
import re
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header

from arl_wire.errors import FieldError, UnsupportedMediaType, ValidationFailed

__all__ = ["UPLOAD_BODY", "UploadedFile", "parse_form", "parse_upload"]

BOUNDARY = re.compile(rb"[\x21-\x7e]([\x20-\x7e]{0,68}[\x21-\x7e])?")
"""Boundary of RFC 2046, section 5.1.1."""
MAX_PARTS, MAX_HEADER_BYTES = 16, 8 << 10
"""Maximum number of parts, and of bytes of one part's headers. The limit of the body bounds the parts' content."""
TRUE_VALUES = frozenset({"true", "1", "yes", "on", "t", "y"})
FORM_SCHEMA = {
    "type": "object",
    "required": ["file", "target_path"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "target_path": {"type": "string"},
        "unzip": {"type": "boolean", "default": False},
    },
}
UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM_SCHEMA}}}
}


# The parser logs a warning for each malformed form, and the sender gets the error anyway.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """The content of an upload form."""

    target: str
    content: bytes
    is_archive: bool


async def parse_upload(request: Request) -> UploadedFile:
    """Parse an upload. Raises UnsupportedMediaType and ValidationFailed."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or boundary is None:
        message = "is not multipart/form-data with a boundary"
        raise UnsupportedMediaType(
            f"the body's content-type {message}", errors=[FieldError(field="header.Content-Type", message=message)]
        )
    fields = parse_form(await request.body(), boundary)
    for name in ("file", "target_path"):
        if not fields.get(name) and not (name == "file" and name in fields):
            raise ValidationFailed(f"{name}: is missing", errors=[FieldError(field=name, message="is missing")])
    is_archive = fields.get("unzip", b"").decode(errors="replace").strip().lower() in TRUE_VALUES
    return UploadedFile(fields["target_path"].decode(errors="replace"), fields["file"], is_archive)


def parse_form(body: bytes, boundary: bytes) -> dict[str, bytes]:
    """Return the parts by name; text before the first and after the last boundary is ignored. Raises
    ValidationFailed.
    """
    mark = b"--" + boundary
    begin = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    # Boundaries are counted before parsing: the parser visits each one in Python, which blocks the event loop.
    is_form = BOUNDARY.fullmatch(boundary) and body.startswith(mark, begin)
    if is_form and body.count(b"\r\n" + mark, begin) <= MAX_PARTS:
        form = _Form()
        try:
            form.parser(boundary).write(body[begin:])
        except MultipartParseError:
            form.has_ended = False
        if form.has_ended:
            return form.fields
    message = f"is not a form of at most {MAX_PARTS} parts that ends with its boundary"
    raise ValidationFailed(f"body: {message}", errors=[FieldError(field="body", message=message)])


@dataclass(slots=True)
class _Form:
    """The parts of one form, collected while they are parsed."""

    fields: dict[str, bytes] = field(default_factory=dict)
    has_ended: bool = False
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _header: bytes = b""
    _head_bytes: int = 0
    _content: list[bytes] = field(default_factory=list)

    def parser(self, boundary: bytes) -> MultipartParser:
        """Return a parser that fills this form."""
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_header_name,
                "on_header_value": self._take_header_value,
                "on_part_data": self._take_content,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
            max_header_size=MAX_HEADER_BYTES,
        )

    def _begin_part(self) -> None:
        self._headers, self._head_bytes, self._content = {}, 0, []

    def _take_header_name(self, body: bytes, start: int, end: int) -> None:
        self._header = body[start:end].lower()
        self._count(end - start)

    def _take_header_value(self, body: bytes, start: int, end: int) -> None:
        self._headers[self._header] = body[start:end]
        self._count(end - start)

    def _count(self, length: int) -> None:
        """Raise `MultipartParseError` if all headers together are too long; the parser limits only single headers."""
        self._head_bytes += length
        if self._head_bytes > MAX_HEADER_BYTES:
            raise MultipartParseError(f"the headers of a part must have at most {MAX_HEADER_BYTES} bytes")

    def _take_content(self, body: bytes, start: int, end: int) -> None:
        self._content.append(body[start:end])

    def _end_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        if (name := options.get(b"name")) is not None:
            self.fields[name.decode("latin-1")] = b"".join(self._content)

    def _end(self) -> None:
        self.has_ended = True
