"""One request to an endpoint and what it answered. What is secret goes out with it and does not come back."""

import ipaddress
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from arl_api.call import Answer, Call
from arl_api.hiding import Hiding
from arl_api.reading import Content, Unreadable, read
from arl_api.settings import EndpointSettings
from arl_api.verdicts import Verdict, retry_after_s, verdict_of

__all__ = ["Heard", "Sender"]

CONNECT_S = 10.0
IDLE_CONNECTION_S = 2.0
"""Less than after which servers close one, perhaps under a request that may then not be sent again."""
MOST_HEADERS, LONGEST_VALUE = 64, 4096
NOT_SHOWN = frozenset(
    {
        *("set-cookie", "set-cookie2", "connection", "keep-alive", "transfer-encoding", "trailer", "upgrade"),
        *("content-encoding", "content-length"),  # of what was sent; the body is unpacked
    }
)
PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " \t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What came of a request. `said` is for people, whoever they are."""

    verdict: Verdict
    said: str
    answer: Answer | None = None
    asked_for_s: float | None = None
    """In how long the endpoint wants to hear from us again."""


class Sender:
    """To one endpoint, over connections of its own."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._base = settings.url.rstrip("/")
        self._hiding = Hiding(settings.secrets)
        self._proxy = _proxy_to(self._base)
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: Call) -> Heard:
        """Raises nothing but what cancels it; the caller says how long it may take."""
        try:
            async with self._opened().request(
                call.method,
                self._url(call),
                headers=self._headers(call.headers),
                data=call.body or None,
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                return self._heard(response, await read(response, keep=self._settings.kept_bytes))
        except aiohttp.ClientConnectorError as error:
            return Heard(verdict=Verdict.UNREACHED, said=f"no connection: {_why(error)}")
        except aiohttp.ClientHttpProxyError as error:
            return Heard(verdict=Verdict.UNREACHED, said=f"no connection: the proxy answered {error.status}")
        except aiohttp.ConnectionTimeoutError:
            return Heard(verdict=Verdict.UNREACHED, said=f"no connection within {CONNECT_S:g} s")
        except aiohttp.InvalidURL:
            return Heard(verdict=Verdict.ITS_FAULT, said="the path or the query is none that can be sent")
        except Unreadable as error:
            return Heard(verdict=Verdict.BROKE_OFF, said=str(error))
        except _ConnectionLost as error:
            return Heard(verdict=Verdict.BROKE_OFF, said=f"the connection broke off: {error}")
        except Exception as error:  # noqa: BLE001 - whatever an answer does to its reader, the request was sent
            return Heard(verdict=Verdict.BROKE_OFF, said=f"the connection broke off: {type(error).__name__}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _heard(self, response: aiohttp.ClientResponse, content: Content) -> Heard:
        verdict, said = verdict_of(response.status), f"it answered {response.status}"
        if verdict is Verdict.BROKE_OFF:
            return Heard(verdict=verdict, said=f"{said}, which is no status of an answer")
        if verdict is Verdict.REFUSED:
            said += "; see to the endpoint's key and its budget"
        asked_for = None
        if verdict is Verdict.THROTTLED:
            asked_for = retry_after_s(response.headers.get("Retry-After"), now=datetime.now(UTC))
        return Heard(verdict=verdict, said=said, answer=self._answer(response, content), asked_for_s=asked_for)

    def _answer(self, response: aiohttp.ClientResponse, content: Content) -> Answer:
        cut = content.total_bytes - len(content.kept)
        body = self._hiding.of_beginning(content.kept) if cut else self._hiding.of(content.kept)
        total = content.total_bytes if cut else len(body)
        return Answer(status=response.status, headers=self._shown(response.headers), body=body, total_bytes=total)

    def _shown(self, headers: Mapping[str, str]) -> dict[str, str]:
        """In ASCII, what is not as %XX; those of one name together (RFC 9110, section 5.3)."""
        shown: dict[str, str] = {}
        for name, value in headers.items():
            if name.lower() not in NOT_SHOWN and (len(shown) < MOST_HEADERS or name.lower() in shown):
                before = f"{shown[name.lower()]}, " if name.lower() in shown else ""
                hidden = self._hiding.of(value.encode("utf-8", "surrogateescape"))
                shown[name.lower()] = (before + quote(hidden, safe=PRINTABLE))[:LONGEST_VALUE]
        return shown

    def _url(self, call: Call) -> URL:
        """As it was checked: nothing is decoded or normalised any more."""
        own = self._settings.own_query
        query = call.raw_query or urlencode(call.query, doseq=True)
        theirs = [part for part in query.split("&") if part and unquote_plus(part.partition("=")[0]) not in own]
        query = "&".join([*theirs, *filter(None, [urlencode(own)])])
        path = f"/{call.path}" if call.path else ""
        return URL(f"{self._base}{path}{'?' if query else ''}{query}", encoded=True)

    def _headers(self, said: Mapping[str, str]) -> dict[str, str]:
        """The endpoint's own go first, however the action writes their names."""
        own = self._settings.own_headers
        names = {name.lower() for name in own}
        said = {name: value for name, value in said.items() if name.lower() not in names}
        return {"Accept-Encoding": "identity", **said, **own}

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                skip_auto_headers=("Content-Type",),
                headers={"User-Agent": "arl-tangram"},
                auto_decompress=False,
                middlewares=(_send_once,),
            )
        return self._session


class _ConnectionLost(Exception):
    """The connection ended after the request may have been sent. The message is the name of aiohttp's error."""


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Turn the errors after which aiohttp sends an idempotent request again into one after which it does not.

    No quota would count the second request.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ConnectionLost(type(error).__name__) from error


def _why(error: aiohttp.ClientConnectorError) -> str:
    """Without the address, which is its operator's."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is not known"
    if isinstance(error, aiohttp.ClientSSLError):
        return "its certificate is not accepted, or it speaks no TLS"
    number = error.os_error.errno
    return os.strerror(number).lower() if number is not None and number > 0 else type(error.os_error).__name__


def _proxy_to(url: str) -> str | None:
    """By the environment, which also says where none is needed; none is between us and this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or _is_near(host) or proxy_bypass(host) else proxy


def _is_near(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
