"""Calls of external HTTP APIs: the request that a broker sends, and the response."""

import json
import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator

from arl_wire.scores import ServiceName
from arl_wire.validation import Base64, OutputStream, StrictModel, is_too_deep, validate_no_nul, validate_unicode

__all__ = [
    "CONNECTION_HEADERS",
    "CREDENTIAL_HEADERS",
    "GATEWAY_KEY",
    "IDEMPOTENT_METHODS",
    "METHOD_OVERRIDE_HEADERS",
    "CallRequest",
    "CallResponse",
    "Endpoint",
    "EndpointListResponse",
    "EndpointName",
    "EndpointReplica",
    "Method",
    "validate_endpoint_path",
]

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})
MAX_BODY_BYTES = 4 << 20
MAX_QUERY_PARAMETERS = 256
CONNECTION_HEADERS = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding"),
        *("upgrade", "accept-encoding", "proxy-connection"),
    }
)
"""Headers that the sender of a request sets itself (RFC 9110, section 7.6.1)."""
CREDENTIAL_HEADERS = re.compile(
    r"(authorization|cookie|token|secret|password|apikey|(?<!idempotency)-key)$", re.IGNORECASE
)
"""Name endings of credential headers. Their values would be stored in rows; brokers add the key instead."""
METHOD_OVERRIDE_HEADERS = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
"""Headers that replace the method at some servers, and so evade the methods that the endpoint allows."""
GATEWAY_KEY = re.compile(r"\btk_[A-Za-z0-9_-]{16,}")
"""A key of this installation, which is never sent to an endpoint."""
_FORBIDDEN_IN_PATH = re.compile(r"[\x00-\x20\x7f\\?#]")

EndpointName = ServiceName
_QueryText = Annotated[str, StringConstraints(max_length=8192), AfterValidator(validate_no_nul)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", max_length=128)]
HeaderValue = Annotated[str, StringConstraints(pattern=r"^[\t\x20-\x7e]*$", max_length=8192)]


def validate_endpoint_path(path: str) -> str:
    """Return the path if it stays below the endpoint's address, however often a server decodes it.

    Raises ValueError if it does not.
    """
    path = path.removeprefix("/")
    decoded = path
    while (once := unquote(decoded)) != decoded:
        decoded = once
    if _FORBIDDEN_IN_PATH.search(path) or "\\" in decoded or any(ord(each) < ord(" ") for each in decoded):
        raise ValueError("has characters that are not allowed: write them as %XX, and put parameters into `query`")
    # Some servers drop the text after a semicolon before they resolve these segments, and some accept invalid UTF-8.
    if {".", ".."}.intersection(part.partition(";")[0] for part in decoded.split("/")) or "\ufffd" in decoded:
        raise ValueError("must stay below the endpoint's address: use valid UTF-8 without `.` and `..` segments")
    if not path.isascii():
        raise ValueError("must be ASCII: write other characters as %XX")
    return path


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if CREDENTIAL_HEADERS.search(name):
            raise ValueError(
                f"`{name}` would be stored with the action: remove it; the broker adds the endpoint's own key"
            )
        if name.lower() in CONNECTION_HEADERS:
            raise ValueError(f"`{name}` is set by the broker: remove it")
        if name.lower() in METHOD_OVERRIDE_HEADERS:
            raise ValueError(f"`{name}` would change the method that was checked: set `method` and remove the header")
        if GATEWAY_KEY.search(value):
            raise ValueError(f"`{name}` contains an API key of ARL-Tangram: remove it")
    return headers


def _reject_fragment(query: str) -> str:
    if "#" in query:
        raise ValueError("must not contain `#`: write it as %23")
    return query


RawQuery = Annotated[str, StringConstraints(max_length=16384, pattern=r"^[!-~]*$"), AfterValidator(_reject_fragment)]


class CallRequest(StrictModel):
    """An HTTP request to an endpoint."""

    method: Method = Field(default="POST", description="HTTP method; the endpoint must allow it")
    path: Annotated[str, StringConstraints(max_length=4096), AfterValidator(validate_endpoint_path)] = Field(
        default="", description="Path relative to the endpoint's address"
    )
    query: dict[_QueryText, _QueryText | list[_QueryText]] = Field(
        default_factory=dict, max_length=MAX_QUERY_PARAMETERS
    )
    headers: Annotated[dict[HeaderName, HeaderValue], AfterValidator(_check_headers)] = Field(
        default_factory=dict,
        max_length=64,
        description="Additional headers. Headers of the endpoint take precedence, and headers for credentials are"
        " refused",
    )
    raw_query: Annotated[
        str, StringConstraints(max_length=16384, pattern=r"^[!-~]*$"), AfterValidator(_reject_fragment)
    ] = Field(default="", description="Query string without `?`, sent unchanged; replaces `query`")
    json_body: Any = Field(default=None, description="Body to send as JSON. To send `null` alone, use `body`")
    body: Annotated[str, AfterValidator(validate_unicode)] | None = Field(
        default=None,
        max_length=MAX_BODY_BYTES,
        description="Body to send as UTF-8 text; the content type is `text/plain` unless a header sets it",
    )
    base64: Base64 | None = Field(
        default=None, max_length=MAX_BODY_BYTES, description="Body to send as bytes, in base64; replaces `body`"
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if [self.json_body, self.body, self.base64].count(None) < 2:
            raise ValueError("give at most one of json_body, body and base64")
        if self.query and self.raw_query:
            raise ValueError("give at most one of query and raw_query")
        if self.method == "HEAD" and self.content:
            raise ValueError("a HEAD request must not have a body")
        if len(self.content) > MAX_BODY_BYTES:
            raise ValueError(f"the body has {len(self.content)} bytes; at most {MAX_BODY_BYTES} are allowed")
        return self

    @property
    def content(self) -> bytes:
        """Return the body as bytes. Raises ValueError for JSON that cannot be written."""
        if self.base64 is not None:
            return self.base64
        if self.json_body is None:
            return (self.body or "").encode()
        if is_too_deep(self.json_body):
            raise ValueError("json_body has too many nested levels")
        return validate_unicode(json.dumps(self.json_body, ensure_ascii=False, allow_nan=False)).encode()

    @property
    def is_idempotent(self) -> bool:
        """Return True if sending the request twice has the effect of sending it once (RFC 9110, section 9.2.2)."""
        return self.method in IDEMPOTENT_METHODS

    @property
    def content_type(self) -> str | None:
        """Return the content type to use if no header sets one."""
        if self.json_body is not None:
            return "application/json"
        return "text/plain; charset=utf-8" if self.body else None


class CallResponse(BaseModel):
    """The response of an endpoint to the last try."""

    status: int = Field(description="HTTP status code")
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Headers with names in lower case and values in ASCII, without cookies. Values of the same"
        " name are joined",
    )
    body: OutputStream = Field(
        default=OutputStream(),
        description="Decompressed body: its first MiB, or less if the broker stores less, and its total size",
    )
    attempts: int = Field(default=1, description="Number of requests that were sent, this one included")


class EndpointReplica(BaseModel):
    """The state of an endpoint at one broker."""

    node: str
    available: bool = Field(description="True if the broker is alive and accepts new actions")
    concurrency: int = Field(description="Maximum number of concurrent calls")
    window: int = Field(
        description="Number of concurrent calls that are allowed now. It is lower for a while after the endpoint"
        " reported overload"
    )
    per_s: float | None = Field(default=None, description="Maximum number of requests per second. Absent: no limit")
    burst: int | None = Field(
        default=None, description="Maximum number of requests in a burst after a pause. Present if `per_s` is"
    )
    in_flight: int
    requests: int = Field(description="Requests sent since the broker started; each attempt counts")
    throttled: int = Field(description="Requests that the endpoint refused because of overload (429, 503, 529)")
    health: str = Field(description="`ok`, or the code of the last error, followed by a colon and details")


class Endpoint(BaseModel):
    """An external HTTP API with a quota that all jobs share. Actions of kind `call` name it."""

    name: EndpointName
    methods: list[str]
    url: str | None = Field(
        default=None,
        description="Address of the endpoint. Present only for keys of project `default` with `admin:read`",
    )
    available: bool = Field(description="True if a broker of the endpoint is alive. Otherwise its actions are queued")
    nodes: list[EndpointReplica]


class EndpointListResponse(BaseModel):
    """All endpoints, by name."""

    items: list[Endpoint]
