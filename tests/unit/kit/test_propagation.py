"""OTEL_PROPAGATORS: trace context that services read from requests and write to calls of other services."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

TRACE, PARENT = "a" * 32, "b" * 16
W3C = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "baggage": "run=7"}
B3 = {"b3": f"{TRACE}-{PARENT}-1"}
PROGRAM = """
import json, sys
from opentelemetry.context import attach
from arl_kit.telemetry import current_traceparent
from arl_kit.telemetry.propagation import (
    context_headers, extract_context, remote_parent, remote_tracestate, traceparent_of,
)
headers = {name.encode(): value.encode() for name, value in json.loads(sys.argv[1]).items()}
context = extract_context(headers)
parent = remote_parent(context)
attach(context)
current_traceparent.set(traceparent_of(parent) if parent is not None else "00-" + "c" * 32 + "-" + "d" * 16 + "-01")
print(json.dumps([current_traceparent.get(), remote_tracestate(), context_headers()]))
"""


def passed_through(headers: dict[str, str], propagators: str | None) -> Any:
    """Return the traceparent that a service sees, the tracestate, and the headers of its own calls."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment |= {"OTEL_PROPAGATORS": propagators} if propagators is not None else {}
    command = [sys.executable, "-c", PROGRAM, json.dumps(headers)]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("propagators", [None, "tracecontext,baggage"])
def test_default_propagators_are_w3c_trace_context_and_baggage(propagators: str | None) -> None:
    assert passed_through(W3C, propagators) == [W3C["traceparent"], "vendor=1", W3C]


def test_tracecontext_propagator_does_not_pass_baggage_on() -> None:
    assert passed_through(W3C, "tracecontext")[2].keys() == {"traceparent", "tracestate"}


def test_b3_headers_are_read_and_written_if_chosen() -> None:
    traceparent, tracestate, sent = passed_through(B3 | W3C, "b3")
    assert (traceparent, tracestate) == (f"00-{TRACE}-{PARENT}-01", "")
    assert sent.keys() == {"b3"}
    assert sent["b3"].startswith(f"{TRACE}-{PARENT}-1")


def test_none_propagator_reads_and_writes_no_headers() -> None:
    traceparent, tracestate, sent = passed_through(W3C, "none")
    assert (traceparent.split("-")[1], tracestate, sent) == ("c" * 32, None, {})


@pytest.mark.parametrize(
    "traceparent", ["nonsense", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01"]
)
def test_malformed_parent_is_ignored(traceparent: str) -> None:
    made, tracestate, _ = passed_through({"traceparent": traceparent}, None)
    assert (made.split("-")[1], tracestate) == ("c" * 32, None)
