"""Servers of others that a node's manager talks to: their addresses and keys, as settings."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, SecretStr, StringConstraints

__all__ = ["UpstreamKey", "UpstreamUrl"]


def _check_url(url: str) -> str:
    try:
        port, host = urlsplit(url).port, urlsplit(url).hostname
    except ValueError as error:
        raise ValueError(f"is no address: {error}") from None
    if not host or port == 0:
        raise ValueError("is no address: it lacks a host, or its port is 0")
    return url


def _check_header_value(key: SecretStr) -> SecretStr:
    """A file's last newline is no part of it."""
    stripped = key.get_secret_value().strip()
    if not stripped or not (stripped.isascii() and stripped.isprintable()):
        raise ValueError("has to be printable ASCII, and not empty")
    return SecretStr(stripped)


UpstreamUrl = Annotated[
    str,
    StringConstraints(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", max_length=512),
    AfterValidator(_check_url),
]
"""Of HTTP, with a path perhaps, and without credentials, parameters or a fragment."""
UpstreamKey = Annotated[SecretStr, AfterValidator(_check_header_value)]
"""Never shown, and fit for a header."""
