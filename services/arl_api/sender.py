"""One request to an endpoint and what it answered. What is secret goes out with it and does not come back."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode, urlsplit

import aiohttp
from yarl import URL

from arl_api.call import Answer, Call
from arl_api.settings import EndpointSettings
from arl_api.verdicts import Verdict, retry_after_s, verdict_of

__all__ = ["KEPT", "Heard", "Sender"]

KEPT = 1 << 20
"""Bytes of an answer's body that are kept, as of a program's output."""
READ = 16 << 20
"""That are read, to say how many there were; a longer answer is not waited for."""
CHUNK = 64 << 10
CONNECT_S = 10.0
IDLE_CONNECTION_S = 15.0
MOST_HEADERS, LONGEST_VALUE = 64, 4096
NOT_SHOWN = frozenset({"set-cookie", "set-cookie2", "connection", "keep-alive", "transfer-encoding"})
SHORTEST_SECRET = 4
HIDDEN = b"[hidden]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What came of a request. `said` is for people."""

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
        self._secrets = _secrets_of(settings)
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
            ) as response:
                return self._heard(response, await _content(response, KEPT + self._longest_secret))
        except aiohttp.ClientConnectorError as error:
            return self._broken(Verdict.UNREACHED, f"no connection: {error.strerror or type(error.os_error).__name__}")
        except aiohttp.ConnectionTimeoutError:
            return self._broken(Verdict.UNREACHED, f"no connection within {CONNECT_S:g} s")
        except aiohttp.InvalidURL:
            return Heard(verdict=Verdict.ITS_FAULT, said="the path or the query is none that can be sent")
        except (aiohttp.ClientError, OSError) as error:
            return self._broken(Verdict.BROKE_OFF, f"the connection broke off: {type(error).__name__}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def _longest_secret(self) -> int:
        return max(map(len, self._secrets), default=0)

    def _broken(self, verdict: Verdict, said: str) -> Heard:
        return Heard(verdict=verdict, said=self._hidden(said.encode()).decode(errors="replace"))

    def _heard(self, response: aiohttp.ClientResponse, content: tuple[bytes, int]) -> Heard:
        kept, total = content
        verdict = verdict_of(response.status)
        answer = Answer(
            status=response.status,
            headers=self._shown(response.headers),
            body=self._hidden(kept)[:KEPT],
            total_bytes=total,
        )
        asked_for = retry_after_s(response.headers.get("Retry-After"), now=datetime.now(UTC))
        said = f"it answered {response.status}"
        if verdict is Verdict.REFUSED:
            said += "; see to the endpoint's key and its budget"
        return Heard(verdict=verdict, said=said, answer=answer, asked_for_s=asked_for)

    def _shown(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Of several with one name, the last."""
        shown = {name.lower(): value for name, value in headers.items() if name.lower() not in NOT_SHOWN}
        return {
            name: self._hidden(value.encode(errors="replace")).decode(errors="replace")[:LONGEST_VALUE]
            for name, value in list(shown.items())[:MOST_HEADERS]
        }

    def _hidden(self, content: bytes) -> bytes:
        """An endpoint may repeat what it was sent."""
        for secret in self._secrets:
            content = content.replace(secret, HIDDEN)
        return content

    def _url(self, call: Call) -> URL:
        """As it was checked: nothing is decoded or normalised any more."""
        secret = {name: value.get_secret_value() for name, value in self._settings.query.items()}
        query = urlencode(
            {name: value for name, value in call.query.items() if name not in secret} | secret, doseq=True
        )
        path = f"/{call.path}" if call.path else ""
        return URL(f"{self._base}{path}{'?' if query else ''}{query}", encoded=True)

    def _headers(self, said: Mapping[str, str]) -> dict[str, str]:
        """The endpoint's own go first, however the action writes their names."""
        own = {name: value.get_secret_value() for name, value in self._settings.headers.items()}
        if self._settings.key is not None:
            own["Authorization"] = f"Bearer {self._settings.key.get_secret_value()}"
        names = {name.lower() for name in own}
        return {name: value for name, value in said.items() if name.lower() not in names} | own

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                skip_auto_headers=("Content-Type",),
                headers={"User-Agent": "arl-tangram"},
                trust_env=not _is_near(self._base),
            )
        return self._session


async def _content(response: aiohttp.ClientResponse, most: int) -> tuple[bytes, int]:
    """Its first bytes, and how many there were; of a very long one, how many were read."""
    kept, total = bytearray(), 0
    async for chunk in response.content.iter_chunked(CHUNK):
        kept += chunk[: max(0, most - len(kept))]
        total += len(chunk)
        if total >= READ:
            response.close()
            break
    return bytes(kept), total


def _secrets_of(settings: EndpointSettings) -> list[bytes]:
    """The longest first, and also without `Bearer` or whatever is before them."""
    values = [each.get_secret_value() for each in (*settings.headers.values(), *settings.query.values())]
    if settings.key is not None:
        values.append(settings.key.get_secret_value())
    words = {word for value in values for word in (value, value.split(" ")[-1]) if len(word) >= SHORTEST_SECRET}
    return [word.encode() for word in sorted(words, key=len, reverse=True)]


def _is_near(url: str) -> bool:
    """No proxy is between us and this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
