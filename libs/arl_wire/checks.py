"""What text and bytes have to be, wherever they are sent."""

import binascii
import posixpath
from base64 import b64decode, b64encode

from pydantic import EncoderProtocol
from pydantic_core import PydanticCustomError

__all__ = ["StrictBase64", "no_nul", "relative_path"]


def no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("NUL characters are not allowed")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode; lone surrogates are not") from None
    return text


def relative_path(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or posixpath.normpath(path) == ".":
        raise ValueError("must be a relative path below the working directory, without `..`")
    return path


class StrictBase64(EncoderProtocol):
    """RFC 4648 §4. Pydantic's own decoder drops characters that are none, and so changes files silently."""

    @classmethod
    def decode(cls, data: bytes) -> bytes:
        try:
            return b64decode(data, validate=True)
        except binascii.Error as error:
            raise PydanticCustomError("base64_decode", "is not base64: {reason}", {"reason": str(error)}) from None

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return b64encode(value)

    @classmethod
    def get_json_format(cls) -> str:
        return "base64"
