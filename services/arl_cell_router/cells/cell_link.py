"""The connection to one cell: its requests, and whether it answers."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from arl_wire.calls import IDEMPOTENT_METHODS
from arl_wire.cells import CELL_HEADER
from arl_wire.errors import CellUnavailable

__all__ = ["CellAvailability", "CellLink", "CellReply"]

CONNECT_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 15.0
"""Seconds for a complete response, except those that wait for actions."""
CHECKS_TO_DOWN, CHECKS_TO_UP = 2, 2
"""Consecutive checks that change the state, so that one lost response does not."""
RETRY_AFTER_S = 2
MISSING_STATUSES = frozenset({502, 503})
LOST_HOST_S = 20
"""Seconds after which a connection to a machine that vanished fails, also while nothing is sent."""
NO_RETRY_HEADERS = {"x-should-retry": "false"}
"""Headers that keep OpenAI's and Anthropic's clients from retrying a 5xx."""
OWN_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the HTTP client would add. The router sends those of its client only."""

log = logging.getLogger(__name__)

HeaderPairs = Iterable[tuple[str, str]]


class CellAvailability:
    """Whether a cell answers, from its last checks. The first check counts at once."""

    def __init__(self) -> None:
        self.problem: str | None = "it was not checked yet"
        """Why the cell gets no requests; None while it is up."""
        self._streak = 0
        self._is_checked = False
        self._up = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Return True if the cell gets requests."""
        return self.problem is None

    def record(self, problem: str | None) -> bool:
        """Record a check: its problem, or None. Return True if the state changed."""
        if (problem is None) == self.is_up and self._is_checked:
            self._streak = 0
            self.problem = problem
            return False
        self._streak += 1
        if self._is_checked and self._streak < (CHECKS_TO_UP if problem is None else CHECKS_TO_DOWN):
            return False
        changed = (problem is None) != self.is_up
        self.problem, self._streak, self._is_checked = problem, 0, True
        (self._up.set if self.is_up else self._up.clear)()
        return changed

    async def wait_up(self, timeout_s: float) -> bool:
        """Wait until the cell is up. Return False if it is not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        return self.is_up


@dataclass(frozen=True, slots=True)
class CellReply:
    """A complete response of a cell."""

    cell: int
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_missing(self) -> bool:
        """Return True if the gateway answered that it cannot serve requests now."""
        return self.status in MISSING_STATUSES

    @property
    def is_success(self) -> bool:
        """Return True for a 2xx status."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Return the parsed body. Raises ValueError if it is not JSON."""
        return json.loads(self.body)


class CellLink:
    """The pooled connections to the gateway of a cell. Each cell has its own, so that none waits for another."""

    def __init__(
        self,
        number: int,
        url: str,
        *,
        max_connections: int,
        check_s: float,
        count: Callable[[str], None],
        report: Callable[[bool], None],
    ) -> None:
        """Create a link that checks the cell every `check_s` seconds.

        `count` gets the outcome of each request, and `report` the state after each check.
        """
        self.number = number
        self._check_s, self._count, self._report = check_s, count, report
        self.availability = CellAvailability()
        self._url = url
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._checks: asyncio.Task[None] | None = None
        self._is_verified = False

    async def start(self) -> None:
        """Open the connections, check the cell once, and start the checks."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
            connector=aiohttp.TCPConnector(
                limit=self._max_connections, keepalive_timeout=30, socket_factory=_watched_socket
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=OWN_HEADERS,
        )
        await self._check()
        self._checks = asyncio.create_task(self._check_forever(), name=f"checks of cell {self.number}")

    async def stop(self) -> None:
        """Stop the checks and close the connections."""
        if self._checks is not None:
            self._checks.cancel()
            with suppress(asyncio.CancelledError):
                await self._checks
        if self._session is not None:
            await self._session.close()

    def unavailable(self, problem: str, *, request: tuple[str, HeaderPairs] | None = None) -> CellUnavailable:
        """Return the error of a request for this cell, with what is not reachable.

        `request` is the method and the headers of a request that was sent and has no response. If its repetition could
        have an effect twice, the error tells clients not to repeat it by themselves.
        """
        error = CellUnavailable(
            f"cell {self.number} does not answer ({problem}). Its actions, environments and trajectories are stored"
            " there and are available again when it returns; other cells are not affected",
            retry_after_s=RETRY_AFTER_S,
        )
        error.headers[CELL_HEADER] = str(self.number)
        if request is not None and not _is_repeatable(*request):
            error.headers |= NO_RETRY_HEADERS
            error.retry_after_s = None
        return error

    async def open(
        self, method: str, target: str, headers: HeaderPairs, body: bytes | AsyncIterator[bytes] | None
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response before its body. `target` is the encoded path with the query.

        Raises `CellUnavailable` if the cell is down or does not respond. The caller closes the response.
        """
        if not self.availability.is_up:
            self._count("refused")
            raise self.unavailable(str(self.availability.problem))
        if self._session is None:
            raise RuntimeError("open() needs start() first")
        try:
            response = await self._session.request(
                method,
                URL(self._url + target, encoded=True),
                headers=list(headers),
                data=body,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count("failed")
            is_sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            raise self.unavailable(type(error).__name__, request=(method, headers) if is_sent else None) from error
        self._count("unavailable" if response.status in MISSING_STATUSES else "answered")
        return response

    async def call(
        self,
        method: str,
        target: str,
        headers: HeaderPairs,
        body: bytes | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> CellReply:
        """Return a complete response. Raises `CellUnavailable` if the cell is down, silent or loses the connection."""
        try:
            async with asyncio.timeout(timeout_s):
                plain = [(name, value) for name, value in headers if name != "accept-encoding"]
                response = await self.open(method, target, [*plain, ("accept-encoding", "identity")], body)
                async with response:
                    content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self.unavailable(type(error).__name__, request=(method, headers)) from error
        return CellReply(self.number, response.status, content, response.headers)

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(self._check_s)
            await self._check()

    async def _check(self) -> None:
        problem = await self._find_problem()
        if self.availability.record(problem):
            log.warning("cell %d is %s", self.number, "up" if problem is None else f"down: {problem}")
        self._report(self.availability.is_up)

    async def _find_problem(self) -> str | None:
        """Return why the cell cannot serve requests, or None."""
        if self._session is None:
            raise RuntimeError("the checks need start() first")
        try:
            async with asyncio.timeout(2 * self._check_s):
                async with self._session.get(f"{self._url}/readyz?max_age_s=1") as response:
                    said = await response.json(content_type=None)
                if response.status != 200:
                    self._is_verified = False
                    return str(said["detail"])
                return None if self._is_verified else await self._verify_number(self._session)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._is_verified = False
            return f"{type(error).__name__} at the health check"
        except (ValueError, LookupError, TypeError):
            return "the health check has no answer of a gateway"

    async def _verify_number(self, session: aiohttp.ClientSession) -> str | None:
        """Compare the number that the gateway knows with the setting. Ids would be looked for in a wrong cell else."""
        async with session.get(f"{self._url}/cell") as response:
            number = (await response.json(content_type=None)).get("cell")
        if number != self.number:
            own = f"is cell {number}" if number else "has no number: start it with `tangram up --cell`"
            return f"the system at this address {own}"
        self._is_verified = True
        return None


def _is_repeatable(method: str, headers: HeaderPairs) -> bool:
    return method in IDEMPOTENT_METHODS or any(name == "idempotency-key" for name, _ in headers)


def _watched_socket(address: Any) -> socket.socket:
    """Return a socket that notices the loss of the other machine by keep-alive probes."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LOST_HOST_S // 4)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LOST_HOST_S // 4)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_HOST_S * 1000)
    return made
