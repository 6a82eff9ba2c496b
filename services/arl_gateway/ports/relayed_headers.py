"""Headers between a client and a server inside an environment.

Neither side gets what belongs to the gateway: the server never gets an API key, a token or a cookie of the API's host,
and its response cannot set a cookie or a policy for that host.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request

from arl_gateway.http.auth import contains_api_key

__all__ = ["Headers", "PortAddress", "is_valid_head", "request_headers", "response_headers"]

Headers = list[tuple[bytes, bytes]]

HOP_FIELDS = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"),
        *(b"trailer", b"upgrade", b"http2-settings", b"expect"),
    }
)
"""Fields of one connection (RFC 9110, section 7.6.1). The framing of the body is kept."""
FRAMING_FIELDS = frozenset({b"content-length", b"transfer-encoding"})
CREDENTIAL_FIELDS = frozenset({b"authorization", b"x-api-key"})
OWN_FIELDS = frozenset({b"x-access-token", b"e2b-traffic-access-token", b"e2b-sandbox-id", b"e2b-sandbox-port"})
FORWARDED_FIELDS = frozenset(
    {b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix"}
)
SIGNED_PREFIX = b"/v1/ports/"
"""Begin of the paths of signed URLs. They contain the token, which the server must not get."""
MAX_STATUS = 599
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_COOKIE_DOMAIN = re.compile(rb";[ \t]*domain[ \t]*=[^;]*", re.IGNORECASE)
ORIGIN_FIELDS = frozenset(
    {
        *(b"set-cookie", b"set-cookie2", b"strict-transport-security", b"clear-site-data", b"alt-svc"),
        *(b"service-worker-allowed", b"public-key-pins", b"report-to", b"nel", b"reporting-endpoints"),
    }
)
"""Fields of a response that concern all of its host."""
SANDBOX_POLICY = (
    b"content-security-policy",
    b"sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts",
)
"""A page on the API's host must not act as that host, such as with cookies of other pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAddress:
    """The address by which the client reaches a port."""

    port: int
    prefix: bytes | None
    """Path before the server's own path, on the host of the API. None: the port has its own host name."""
    is_keyed: bool
    """True if the request is authenticated by an API key, so that its credentials are not for the server."""


def request_headers(request: Request, address: PortAddress, *, is_websocket: bool) -> Headers:
    """Return the headers of a request as the server gets them."""
    fields: Headers = request.headers.raw
    dropped = HOP_FIELDS | OWN_FIELDS | FORWARDED_FIELDS | _named_by_connection(fields) | {b"host"}
    if address.prefix is not None:
        dropped |= {b"cookie"}
    found = [
        (name, value)
        for name, value in fields
        if name not in dropped and not (name in CREDENTIAL_FIELDS and _is_ours(value, address))
    ]
    host = dict(fields).get(b"host", b"")
    found.append((b"host", b"localhost:%d" % address.port if address.prefix is not None else host))
    found.append((b"x-forwarded-host", host))
    found.append((b"x-forwarded-proto", request.scope["scheme"].encode()))
    if address.prefix and not address.prefix.startswith(SIGNED_PREFIX):
        found.append((b"x-forwarded-prefix", address.prefix))
    if is_websocket:
        return [*found, (b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    return [*found, (b"connection", b"close")]


def response_headers(fields: Iterable[tuple[bytes, bytes]], address: PortAddress) -> Headers:
    """Return the headers of a server's response as the client gets them."""
    pairs = [(name.lower(), value) for name, value in fields]
    dropped = HOP_FIELDS | {b"transfer-encoding"} | _named_by_connection(pairs)
    if any(name == b"transfer-encoding" for name, _ in pairs):
        dropped |= {b"content-length"}  # h11 reads the chunks, and a length beside them is wrong (RFC 9112, 6.3)
    if address.prefix is None:
        # With a domain, a cookie would be sent to the ports of others as well.
        return [
            (name, _COOKIE_DOMAIN.sub(b"", value) if name == b"set-cookie" else value)
            for name, value in pairs
            if name not in dropped
        ]
    kept = [
        (name, _with_prefix(value, address) if name == b"location" else value)
        for name, value in pairs
        if name not in dropped | ORIGIN_FIELDS
    ]
    return [*kept, SANDBOX_POLICY]


def is_valid_head(status: int, fields: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return False for a status or a header that h11 accepts and the server of the gateway does not."""
    return 200 <= status <= MAX_STATUS and not any(_CONTROL.search(value) for _, value in fields)


def _named_by_connection(fields: Headers) -> frozenset[bytes]:
    return frozenset(
        token.strip().lower() for name, value in fields if name == b"connection" for token in value.split(b",")
    ).difference(FRAMING_FIELDS)


def _is_ours(credential: bytes, address: PortAddress) -> bool:
    return address.is_keyed or contains_api_key(credential.decode("latin-1"))


def _with_prefix(location: bytes, address: PortAddress) -> bytes:
    """Return a redirect to the server's own host with the path before its paths."""
    path = location.removeprefix(b"http://localhost:%d" % address.port)
    is_local = path.startswith(b"/") and not path.startswith(b"//")
    return (address.prefix or b"") + path if is_local else location
