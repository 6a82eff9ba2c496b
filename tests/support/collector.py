"""An OpenTelemetry collector as far as a test needs one: takes OTLP over HTTP, keeps what came."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.system import free_ports

__all__ = ["Collector", "a_collector"]


@dataclass
class Collector:
    port: int
    status: int = 200
    """What it answers."""
    requests: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """Of the last request."""
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of_trace(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id.hex() == trace_id]

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
        """Looked at whenever something came."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._came.clear()
                await self._came.wait()

    async def _take(self, request: web.Request) -> web.Response:
        content = await request.read()
        if request.headers.get("content-encoding") == "gzip" and content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        self.requests += 1
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        if self.status == 200:
            self._keep(ExportTraceServiceRequest.FromString(content))
        self._came.set()
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, status=self.status, content_type="application/x-protobuf")

    def _keep(self, request: ExportTraceServiceRequest) -> None:
        for of_resource in request.resource_spans:
            about = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            self.resources.append(about)
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]


@asynccontextmanager
async def a_collector() -> AsyncIterator[Collector]:
    [port] = free_ports(1)
    collector = Collector(port)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/traces", collector._take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield collector
    finally:
        await runner.cleanup()
