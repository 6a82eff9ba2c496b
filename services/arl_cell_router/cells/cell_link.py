"""The connection to one cell: its requests, and whether it answers."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from arl_cell_router.cells.cell_sessions import PoolWait, open_session
from arl_wire.calls import IDEMPOTENT_METHODS
from arl_wire.cells import CELL_HEADER
from arl_wire.errors import CellBusy, CellUnavailable

__all__ = ["MISSING_STATUSES", "RETRY_AFTER_S", "CellAvailability", "CellLink", "CellReply"]

CALL_TIMEOUT_S = 15.0
"""Seconds for a complete response of a cell, unless the caller sets another time."""
CHECKS_TO_DOWN, CHECKS_TO_UP = 2, 2
"""Consecutive checks that change the state, so that one lost response does not."""
CHECK_CONNECTIONS = 2
RETRY_AFTER_S = 2
MAX_RETRY_DIGITS = 6
MISSING_STATUSES = frozenset({502, 503})
NO_RETRY_HEADERS = {"x-should-retry": "false"}
"""Headers that keep OpenAI's and Anthropic's clients from retrying a 5xx."""

log = logging.getLogger(__name__)

HeaderPairs = Iterable[tuple[str, str]]


class CellAvailability:
    """The availability of a cell, from its last checks. The first check counts at once."""

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

    @property
    def retry_after_s(self) -> float:
        """Return the seconds after which the gateway asks for a repetition; 0 without such a header."""
        text = self.headers.get("retry-after", "")
        return float(text) if text.isascii() and text.isdigit() and len(text) <= MAX_RETRY_DIGITS else 0.0

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
        self._check_session: aiohttp.ClientSession | None = None
        """The checks have their own connections, so that many open requests do not make a check fail."""
        self._calls: set[asyncio.Timeout] = set()
        """The time limits of the calls in progress. They end at once when the cell is found to be down."""
        self._checks: asyncio.Task[None] | None = None
        self._is_verified = False

    async def start(self) -> None:
        """Open the connections, check the cell once, and start the checks."""
        self._session = open_session(self._max_connections)
        self._check_session = open_session(CHECK_CONNECTIONS)
        await self._check()
        self._checks = asyncio.create_task(self._check_forever(), name=f"checks of cell {self.number}")

    async def stop(self) -> None:
        """Stop the checks and close the connections."""
        if self._checks is not None:
            self._checks.cancel()
            with suppress(asyncio.CancelledError):
                await self._checks
        for session in (self._session, self._check_session):
            if session is not None:
                await session.close()

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

        The caller closes the response.

        Raises:
            CellUnavailable: The cell is down or does not respond.
            CellBusy: All connections to the cell are in use.
        """
        if not self.availability.is_up:
            self._count("refused")
            raise self.unavailable(str(self.availability.problem))
        if self._session is None:
            raise RuntimeError("open() needs start() first")
        pool_wait = PoolWait()
        try:
            response = await self._session.request(
                method,
                URL(self._url + target, encoded=True),
                headers=list(headers),
                data=body,
                allow_redirects=False,
                trace_request_ctx=pool_wait,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if pool_wait.is_waiting and isinstance(error, aiohttp.ConnectionTimeoutError):
                self._count("busy")
                raise self._busy() from error
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
        """Return a complete response.

        Raises `CellUnavailable` if the cell is down, does not respond in time, or is found to be down meanwhile, and
        `CellBusy` if all connections to it are in use.
        """
        try:
            async with asyncio.timeout(timeout_s) as limit:
                with self._ended_when_down(limit):
                    plain = [(name, value) for name, value in headers if name != "accept-encoding"]
                    response = await self.open(method, target, [*plain, ("accept-encoding", "identity")], body)
                    async with response:
                        content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = self.availability.problem or _describe(error, timeout_s)
            raise self.unavailable(problem, request=(method, headers)) from error
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
        if not self.availability.is_up:
            self._end_calls()

    @contextmanager
    def _ended_when_down(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Let `_end_calls` end the call with this time limit."""
        self._calls.add(limit)
        try:
            yield
        finally:
            self._calls.discard(limit)

    def _end_calls(self) -> None:
        now = asyncio.get_running_loop().time()
        for limit in self._calls:
            if not limit.expired():
                limit.reschedule(now)

    def _busy(self) -> CellBusy:
        error = CellBusy(
            f"too many requests to cell {self.number} are open: all {self._max_connections} connections of this router"
            " are in use. Repeat the request, run several routers, or start the router with a larger --connections",
            retry_after_s=RETRY_AFTER_S,
        )
        error.headers[CELL_HEADER] = str(self.number)
        return error

    async def _find_problem(self) -> str | None:
        """Return why the cell cannot serve requests, or None."""
        session = self._check_session
        if session is None:
            raise RuntimeError("the checks need start() first")
        try:
            async with asyncio.timeout(2 * self._check_s):
                async with session.get(f"{self._url}/readyz?max_age_s=1") as response:
                    said = await response.json(content_type=None)
                if response.status != 200:
                    self._is_verified = False
                    return str(said["detail"])
                return None if self._is_verified else await self._verify_number(session)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._is_verified = False
            return f"{type(error).__name__} at the health check"
        except (ValueError, LookupError, TypeError):
            return "the health check has no answer of a gateway"

    async def _verify_number(self, session: aiohttp.ClientSession) -> str | None:
        """Compare the number that the gateway knows with the setting. A wrong number would send ids to a wrong cell."""
        async with session.get(f"{self._url}/cell") as response:
            number = (await response.json(content_type=None)).get("cell")
        if number != self.number:
            own = f"is cell {number}" if number else "has no number: start it with `tangram up --cell`"
            return f"the system at this address {own}"
        self._is_verified = True
        return None


def _describe(error: Exception, timeout_s: float) -> str:
    return f"no response within {timeout_s:g} s" if isinstance(error, TimeoutError) else type(error).__name__


def _is_repeatable(method: str, headers: HeaderPairs) -> bool:
    return method in IDEMPOTENT_METHODS or any(name == "idempotency-key" for name, _ in headers)
