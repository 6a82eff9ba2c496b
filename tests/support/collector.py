"""A small OpenTelemetry collector for tests: it receives OTLP over HTTP and gRPC and keeps the spans."""

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.system import free_ports

__all__ = ["Collector", "a_collector"]

DECODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@dataclass
class Collector:
    port: int
    grpc_port: int
    scheme: str = "http"
    status: int = 200
    """HTTP status of every response; gRPC answers UNAVAILABLE unless it is 200."""
    delay_s: float = 0.0
    """Seconds before an HTTP response."""
    requests: int = 0
    path: str = ""
    """Path of the last HTTP request."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the last HTTP request, or metadata of the last gRPC call."""
    compressed: bool = False
    """True if the content of the last request was compressed."""
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def grpc_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.grpc_port}"

    def of_trace(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id.hex() == trace_id]

    async def until(self, condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
        """Check the condition after every request until it is true."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._came.clear()
                await self._came.wait()

    async def _take(self, request: web.Request) -> web.Response:
        content = await request.read()
        encoding = request.headers.get("content-encoding", "")
        self.compressed = encoding in DECODERS
        # aiohttp decodes a body by itself where it can.
        if encoding == "gzip" and content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        self.path = request.path
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        self.take(content if self.status == 200 else b"")
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, status=self.status, content_type="application/x-protobuf")

    def take(self, content: bytes) -> None:
        self.requests += 1
        for of_resource in ExportTraceServiceRequest.FromString(content).resource_spans:
            about = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            self.resources.append(about)
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]
        self._came.set()


class _TraceService(TraceServiceServicer):
    def __init__(self, collector: Collector, loop: asyncio.AbstractEventLoop) -> None:
        self._collector = collector
        self._loop = loop

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:
        metadata: dict[str, Any] = dict(context.invocation_metadata())
        self._collector.headers = metadata
        content = request.SerializeToString() if self._collector.status == 200 else b""
        self._loop.call_soon_threadsafe(self._collector.take, content)
        if self._collector.status != 200:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the test says so")
        return ExportTraceServiceResponse()


@asynccontextmanager
async def a_collector(*, certificate: tuple[str, str] | None = None) -> AsyncIterator[Collector]:
    """Run a collector; with `certificate`, files of a certificate chain and its key, over TLS."""
    port, grpc_port = free_ports(2)
    collector = Collector(port, grpc_port, scheme="https" if certificate else "http")
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{path:.*}", collector._take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = None
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(_TraceService(collector, asyncio.get_running_loop()), server)
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        chain, key = (Path(name).read_bytes() for name in certificate)
        server.add_secure_port(f"127.0.0.1:{grpc_port}", grpc.ssl_server_credentials([(key, chain)]))
    else:
        server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    server.start()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield collector
    finally:
        await asyncio.to_thread(server.stop(None).wait)
        await runner.cleanup()
