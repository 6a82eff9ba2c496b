"""An external API with a hard quota, as a provider has one: started as a program, and asked what it saw.

What is beyond the quota is answered with 429 at once. Times are those of the machine's monotonic clock, so that they
can be compared with those of another process.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from aiohttp import web

from arl_core.rate import TokenBucket
from arl_tangram.bench.calls_load import Sizes, service_s
from arl_wire.errors import Unavailable

__all__ = ["api_of"]

STOP_S = 10.0


@dataclass(slots=True)
class _Seen:
    """Since it was told to begin anew."""

    bucket: TokenBucket
    began: float = field(default_factory=time.monotonic)
    beyond_slots: int = 0
    early_s: list[float] = field(default_factory=list)
    """Of each other request beyond the quota, how long before its token it came."""
    in_flight: int = 0
    most_in_flight: int = 0
    requests_in_second: Counter[int] = field(default_factory=Counter)
    served: list[tuple[str, float, float]] = field(default_factory=list)
    """The key of a call, and from when to when it took a slot."""


class _Api:
    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._seen = self._anew()

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [web.get("/search", self._search), web.post("/begin", self._begin), web.get("/seen", self._shown)]
        )
        return app

    async def _search(self, request: web.Request) -> web.Response:
        seen, now, key = self._seen, time.monotonic(), request.query["q"]
        seen.requests_in_second[int(now - seen.began)] += 1
        if seen.in_flight >= self._sizes.concurrency:
            seen.beyond_slots += 1
            return self._too_many()
        if seen.bucket.free(now) < 1:
            seen.early_s.append(seen.bucket.free_at(1, now=now) - now)
            return self._too_many()
        seen.bucket.take(1, now=now)
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            await asyncio.sleep(service_s(self._sizes, key))
        finally:
            seen.in_flight -= 1
            seen.served.append((key, now, time.monotonic()))
        return web.json_response({"q": key})

    def _too_many(self) -> web.Response:
        after = self._sizes.retry_after_s
        headers = {"Retry-After": f"{after:g}"} if after is not None else {}
        return web.json_response({"error": "rate_limited"}, status=429, headers=headers)

    async def _begin(self, _: web.Request) -> web.Response:
        self._seen = self._anew()
        return web.json_response({})

    async def _shown(self, _: web.Request) -> web.Response:
        seen = self._seen
        last = max(seen.requests_in_second, default=-1)
        return web.json_response(
            {
                "beyond_slots": seen.beyond_slots,
                "early_s": seen.early_s,
                "most_in_flight": seen.most_in_flight,
                "requests_in_second": [seen.requests_in_second[second] for second in range(last + 1)],
                "served": seen.served,
            }
        )

    def _anew(self) -> _Seen:
        return _Seen(TokenBucket(self._sizes.rate, now=time.monotonic()))


@contextmanager
def api_of(sizes: Sizes) -> Iterator[str]:
    """Where it answers on this machine. It ends with its standard input."""
    command = [sys.executable, "-P", "-m", "arl_tangram.bench.calls_api", json.dumps(asdict(sizes))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise Unavailable("the API did not come up")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


async def _serve(sizes: Sizes) -> None:
    runner = web.AppRunner(_Api(sizes).app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main(given: str) -> None:
    fields: dict[str, Any] = json.loads(given)
    asyncio.run(_serve(Sizes(**fields)))


if __name__ == "__main__":
    main(sys.argv[1])
