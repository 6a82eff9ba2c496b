"""An external API with a hard quota, which runs as a separate program and reports its statistics.

Requests beyond the quota get a 429 at once. Times are the machine's monotonic clock, so that they can be compared with
those of another process.
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

from arl_bench.endpoints.call_load import EndpointBenchConfig, service_time_s
from arl_core.control.rate_limits import TokenBucket
from arl_wire.errors import Unavailable

__all__ = ["quota_api"]

STOP_TIMEOUT_S = 10.0


@dataclass(slots=True)
class _ApiStats:
    """Statistics since the last reset."""

    bucket: TokenBucket
    started_at: float = field(default_factory=time.monotonic)
    over_concurrency: int = 0
    early_by_s: list[float] = field(default_factory=list)
    """Seconds by which each other request beyond the quota came before its token."""
    in_flight: int = 0
    most_in_flight: int = 0
    requests_in_second: Counter[int] = field(default_factory=Counter)
    served: list[tuple[str, float, float]] = field(default_factory=list)
    """Key of each call, and the start and end of its use of a slot."""


class _QuotaApi:
    def __init__(self, config: EndpointBenchConfig) -> None:
        self._config = config
        self._stats = self._new_stats()

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [web.get("/search", self._search), web.post("/begin", self._reset), web.get("/seen", self._get_stats)]
        )
        return app

    async def _search(self, request: web.Request) -> web.Response:
        seen, now, key = self._stats, time.monotonic(), request.query["q"]
        seen.requests_in_second[int(now - seen.started_at)] += 1
        if seen.in_flight >= self._config.concurrency:
            seen.over_concurrency += 1
            return self._rate_limited_response()
        if seen.bucket.available(now) < 1:
            seen.early_by_s.append(seen.bucket.available_at(1, now=now) - now)
            return self._rate_limited_response()
        seen.bucket.take(1, now=now)
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            await asyncio.sleep(service_time_s(self._config, key))
        finally:
            seen.in_flight -= 1
            seen.served.append((key, now, time.monotonic()))
        return web.json_response({"q": key})

    def _rate_limited_response(self) -> web.Response:
        after = self._config.retry_after_s
        headers = {"Retry-After": f"{after:g}"} if after is not None else {}
        return web.json_response({"error": "rate_limited"}, status=429, headers=headers)

    async def _reset(self, _: web.Request) -> web.Response:
        self._stats = self._new_stats()
        return web.json_response({})

    async def _get_stats(self, _: web.Request) -> web.Response:
        seen = self._stats
        last = max(seen.requests_in_second, default=-1)
        return web.json_response(
            {
                "beyond_slots": seen.over_concurrency,
                "early_s": seen.early_by_s,
                "most_in_flight": seen.most_in_flight,
                "requests_in_second": [seen.requests_in_second[second] for second in range(last + 1)],
                "served": seen.served,
            }
        )

    def _new_stats(self) -> _ApiStats:
        return _ApiStats(TokenBucket(self._config.rate, now=time.monotonic()))


@contextmanager
def quota_api(config: EndpointBenchConfig) -> Iterator[str]:
    """Start the API and yield its URL. The API ends when its standard input is closed."""
    command = [sys.executable, "-P", "-m", "arl_bench.endpoints.quota_api", json.dumps(asdict(config))]
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
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


async def _serve(config: EndpointBenchConfig) -> None:
    runner = web.AppRunner(_QuotaApi(config).app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main(config_json: str) -> None:
    fields: dict[str, Any] = json.loads(config_json)
    asyncio.run(_serve(EndpointBenchConfig(**fields)))


if __name__ == "__main__":
    main(sys.argv[1])
