"""A request to an endpoint and its result. Secrets are sent with the request and removed from the response."""

import ipaddress
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from arl_api.calls import EndpointCall, EndpointResponse
from arl_api.redaction import SecretRedactor
from arl_api.response_body import BodyContent, UnreadableBody, read_body
from arl_api.settings import EndpointSettings
from arl_api.verdicts import CallVerdict, asked_delay_s, is_exhausted, verdict_for_status

__all__ = ["EndpointSender", "RequestResult"]

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_TIMEOUT_S = 2.0
"""Seconds, less than the idle timeout of servers: a server could close a connection under a non-repeatable request."""
MAX_HEADERS, MAX_HEADER_VALUE_CHARACTERS = 64, 4096
MAX_RECEIVED_HEADERS, MAX_HEADER_LINE_BYTES = 1000, 64 << 10
MAX_INFORMATIONAL = 16
"""Maximum informational responses (status 1xx) before the response. An endless sequence would occupy the broker."""
HIDDEN_HEADERS = frozenset(
    {
        *("set-cookie", "set-cookie2", "connection", "keep-alive", "transfer-encoding", "trailer", "upgrade"),
        *("content-encoding", "content-length"),  # of the encoded body; the result has the decoded one
    }
)
PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " \t"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """The result of a request. `message` is for people."""

    verdict: CallVerdict
    message: str
    response: EndpointResponse | None = None
    retry_after_s: float | None = None
    """Seconds after which the endpoint accepts the next request."""
    may_retry: bool = True
    """False if the endpoint says that a retry is useless."""


class EndpointSender:
    """A sender to one endpoint, over separate connections."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._base = settings.url.rstrip("/")
        self._redactor = SecretRedactor(settings.secrets)
        self._proxy = _proxy_for(self._base)
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: EndpointCall) -> RequestResult:
        """Send one request. Only cancellation raises; the caller limits the duration."""
        try:
            async with self._open_session().request(
                call.method,
                self._url(call),
                headers=self._headers(call.headers),
                data=call.body or None,
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                return await self._build_result(
                    response, await read_body(response, max_bytes=self._settings.max_body_bytes)
                )
        except aiohttp.ClientConnectorError as error:
            return RequestResult(
                verdict=CallVerdict.UNREACHABLE,
                message=f"the endpoint is not reachable: {_connection_error_text(error)}",
            )
        except aiohttp.ClientHttpProxyError as error:
            return RequestResult(
                verdict=CallVerdict.UNREACHABLE,
                message=f"the endpoint is not reachable: the proxy returned status {error.status}",
            )
        except aiohttp.ConnectionTimeoutError:
            return RequestResult(
                verdict=CallVerdict.UNREACHABLE,
                message=f"the endpoint is not reachable: no connection within {CONNECT_TIMEOUT_S:g} s",
            )
        except aiohttp.InvalidURL:
            return RequestResult(
                verdict=CallVerdict.USER_ERROR, message="the path or the query of the request is invalid"
            )
        except UnreadableBody as error:
            return RequestResult(verdict=CallVerdict.CONNECTION_LOST, message=str(error))
        except _ConnectionLost as error:
            return RequestResult(verdict=CallVerdict.CONNECTION_LOST, message=f"the connection was lost: {error}")
        except Exception as error:  # noqa: BLE001 - after any error the request may have been sent
            return RequestResult(
                verdict=CallVerdict.CONNECTION_LOST, message=f"the connection was lost: {type(error).__name__}"
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _build_result(self, response: aiohttp.ClientResponse, content: BodyContent) -> RequestResult:
        verdict, said = verdict_for_status(response.status), f"the endpoint returned status {response.status}"
        if verdict is CallVerdict.CONNECTION_LOST:
            return RequestResult(verdict=verdict, message=f"{said}, which is not a final status")
        asked_for, may_retry = None, True
        if verdict is CallVerdict.THROTTLED:
            headers = {name.lower(): value for name, value in response.headers.items()}
            asked_for = asked_delay_s(headers, content.prefix, now=datetime.now(UTC))
            may_retry = headers.get("x-should-retry") != "false"
            if is_exhausted(content.prefix):
                verdict = CallVerdict.REFUSED
        if verdict is CallVerdict.REFUSED:
            said += "; check the endpoint's key and its budget"
        return RequestResult(
            verdict=verdict,
            message=said,
            response=await self._build_response(response, content),
            retry_after_s=asked_for,
            may_retry=may_retry,
        )

    async def _build_response(self, response: aiohttp.ClientResponse, content: BodyContent) -> EndpointResponse:
        cut = content.total_bytes - len(content.prefix)
        body = await self._redactor.redact_body(content.prefix, truncated=cut > 0)
        total = content.total_bytes if cut else len(body)
        return EndpointResponse(
            status=response.status, headers=self._visible_headers(response.headers), body=body, total_bytes=total
        )

    def _visible_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers in ASCII, other characters as %XX. Headers of one name are joined (RFC 9110, 5.3)."""
        shown: dict[str, str] = {}
        for name, value in headers.items():
            if self._redactor.redact(name.encode()) != name.encode():
                continue
            if name.lower() not in HIDDEN_HEADERS and (len(shown) < MAX_HEADERS or name.lower() in shown):
                before = f"{shown[name.lower()]}, " if name.lower() in shown else ""
                hidden = self._redactor.redact(value.encode("utf-8", "surrogateescape"))
                shown[name.lower()] = (before + quote(hidden, safe=PRINTABLE))[:MAX_HEADER_VALUE_CHARACTERS]
        return shown

    def _url(self, call: EndpointCall) -> URL:
        """Return the URL as it was checked: it is not decoded or normalised again."""
        own = self._settings.own_query
        query = call.raw_query or urlencode(call.query, doseq=True)
        theirs = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) not in own]
        query = "&".join([*theirs, *filter(None, [urlencode(own)])])
        path = f"/{call.path}" if call.path else ""
        return URL(f"{self._base}{path}{'?' if query else ''}{query}", encoded=True)

    def _headers(self, action_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers. The endpoint's configured headers replace the action's, in any case of their names."""
        own = self._settings.own_headers
        names = {name.lower() for name in own}
        action_headers = {name: value for name, value in action_headers.items() if name.lower() not in names}
        return {"Accept-Encoding": "identity", **action_headers, **own}

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                skip_auto_headers=("Content-Type",),
                headers={"User-Agent": "arl-tangram"},
                auto_decompress=False,
                middlewares=(_send_once,),
                response_class=_BoundedResponse,
                max_line_size=MAX_HEADER_LINE_BYTES,
                max_field_size=MAX_HEADER_LINE_BYTES,
                max_headers=MAX_RECEIVED_HEADERS,
            )
        return self._session


class _ConnectionLost(Exception):
    """The connection ended after the request may have been sent. The message is the name of aiohttp's error."""


class _BoundedResponse(aiohttp.ClientResponse):
    """A response that may follow only a few informational responses."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the header of the final response."""
        bounded: Any = _BoundedConnection(connection)
        return await super().start(bounded)


class _BoundedConnection:
    """A connection whose protocol returns a bounded number of messages for one response."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.protocol = _BoundedProtocol(connection.protocol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _BoundedProtocol:
    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._reads = 0

    async def read(self) -> Any:
        """Return the next message. Raises `_ConnectionLost` after too many."""
        self._reads += 1
        if self._reads > MAX_INFORMATIONAL + 1:
            raise _ConnectionLost("too many informational responses")
        return await self._protocol.read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Replace errors after which aiohttp sends an idempotent request again by an error after which it does not.

    No quota would count the second request.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ConnectionLost(type(error).__name__) from error


def _connection_error_text(error: aiohttp.ClientConnectorError) -> str:
    """Return the error without the address, which belongs to the operator."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host name cannot be resolved"
    if isinstance(error, aiohttp.ClientSSLError):
        return "the certificate is not accepted, or the server does not use TLS"
    number = error.os_error.errno
    return os.strerror(number).lower() if number is not None and number > 0 else type(error.os_error).__name__


def _proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for this URL. None for an excluded host or a loopback address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or _is_loopback(host) or proxy_bypass(host) else proxy


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
