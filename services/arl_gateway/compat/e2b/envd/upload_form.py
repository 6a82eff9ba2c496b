"""Parts of an upload form. The name of a file is its whole path in the sandbox."""

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from arl_gateway.compat.e2b.errors import GuestCallError

__all__ = ["parse_parts"]

FIELD = b"file"


def parse_parts(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """Return path and content of each file. Raises GuestCallError."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    form = _UploadForm()
    try:
        if not boundary:
            raise MultipartParseError("no boundary")
        form.parser(boundary).write(body)
    except MultipartParseError:
        form.has_ended = False
    if not form.has_ended:
        raise GuestCallError("invalid_argument", "the body is not a complete form")
    return form.files


class _UploadForm:
    """The parts of one form, collected while they are parsed."""

    def __init__(self) -> None:
        self.files: list[tuple[str, bytes]] = []
        self.has_ended = False
        self._headers: dict[bytes, bytes] = {}
        self._name = b""
        self._content: list[bytes] = []

    def parser(self, boundary: bytes) -> MultipartParser:
        """Return a parser that fills this form."""
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_name,
                "on_header_value": self._take_value,
                "on_part_data": self._take_content,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def _begin_part(self) -> None:
        self._headers, self._content = {}, []

    def _take_name(self, body: bytes, start: int, end: int) -> None:
        self._name = body[start:end].lower()

    def _take_value(self, body: bytes, start: int, end: int) -> None:
        self._headers[self._name] = body[start:end]

    def _take_content(self, body: bytes, start: int, end: int) -> None:
        self._content.append(body[start:end])

    def _end_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        if options.get(b"name") == FIELD:
            path = options.get(b"filename", b"").decode(errors="replace")
            self.files.append((path, b"".join(self._content)))

    def _end(self) -> None:
        self.has_ended = True
