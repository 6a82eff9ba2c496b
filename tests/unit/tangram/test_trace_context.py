"""The Python SDK sends the current span of an OpenTelemetry tracer as the parent of what it submits."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

import pytest
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id

from arl_tangram import AsyncTangram, Tangram

HEADERS = ("traceparent", "tracestate", "baggage", "b3")


class HeaderServer(ThreadingHTTPServer):
    """A gateway that keeps the trace headers of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ActionHandler)
        self.seen: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class ActionHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HeaderServer

    def do_GET(self) -> None:
        self.server.seen.append({name: self.headers[name] for name in HEADERS if name in self.headers})
        action = {"id": self.path.rpartition("/")[2], "task": "t", "kind": "exec", "state": "queued"}
        content = json.dumps(action | {"created_at": "2026-01-01T00:00:00Z", "priority": "0"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[HeaderServer]:
    server = HeaderServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_sync_client_sends_the_current_span_and_baggage(gateway: HeaderServer) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("trainer")
    with Tangram(gateway.url, "tk_x") as tangram, tracer.start_as_current_span("rollout") as span:
        token = attach(baggage.set_baggage("run", "7"))
        tangram.get(UUID(int=1))
        detach(token)
    context = span.get_span_context()
    traceparent = f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"
    assert gateway.seen == [{"traceparent": traceparent, "baggage": "run=7"}]


async def test_async_client_sends_the_span_of_its_own_task(gateway: HeaderServer) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("trainer")
    sent = []
    async with AsyncTangram(gateway.url, "tk_x") as tangram:
        for number in range(2):
            with tracer.start_as_current_span(f"rollout {number}") as span:
                await tangram.get(UUID(int=number))
                sent.append(format_span_id(span.get_span_context().span_id))
        await tangram.get(UUID(int=3))
    assert [seen.get("traceparent", "---").split("-")[2] for seen in gateway.seen] == [*sent, ""]


PROGRAM = """
import sys
from uuid import UUID
from arl_tangram import Tangram
if sys.argv[2] == "blocked":
    sys.modules["opentelemetry"] = None
else:
    from opentelemetry import trace
    context = trace.SpanContext(10, 11, False, trace.TraceFlags(1))
    used = trace.use_span(trace.NonRecordingSpan(context))
    used.__enter__()
with Tangram(sys.argv[1], "tk_x") as tangram:
    tangram.get(UUID(int=1))
print(sorted(name for name in sys.modules if name.startswith("opentelemetry.")) if sys.argv[2] == "blocked" else [])
"""


@pytest.mark.parametrize(
    ("mode", "propagators", "sent"),
    [
        ("blocked", None, set()),
        ("used", None, {"traceparent"}),
        ("used", "b3", {"b3"}),
        ("used", "none", set()),
        ("used", "misspelt", set()),
    ],
)
def test_headers_follow_the_propagators_of_the_process(
    mode: str, propagators: str | None, sent: set[str], gateway: HeaderServer
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment |= {"OTEL_PROPAGATORS": propagators} if propagators is not None else {}
    command = [sys.executable, "-c", PROGRAM, gateway.url, mode]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert [set(seen) for seen in gateway.seen] == [sent]
    assert done.stdout.strip() == "[]"
