"""Trace context of requests, read and written by the propagators that OTEL_PROPAGATORS names.

The default is W3C Trace Context and W3C Baggage. Inside a process the context is `current_traceparent`, for any format
of a request.
"""

from collections.abc import Mapping, Sequence

from opentelemetry.context import Context, get_current
from opentelemetry.propagate import get_global_textmap
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span, set_span_in_context

from arl_kit.telemetry import current_traceparent, new_traceparent

__all__ = ["context_headers", "extract_context", "remote_parent", "remote_tracestate", "traceparent_of"]

RawHeaders = Mapping[bytes, bytes]
"""Headers of an ASGI scope, names in lower case."""


class _RawHeaderGetter(Getter[RawHeaders]):
    """A reader of ASGI headers for propagators."""

    def get(self, carrier: RawHeaders, key: str) -> list[str] | None:
        """Return the values of a header; None if it is missing."""
        content = carrier.get(key.lower().encode("latin-1"))
        return None if content is None else [content.decode("latin-1")]

    def keys(self, carrier: RawHeaders) -> list[str]:
        """Return the names of all headers."""
        return [name.decode("latin-1") for name in carrier]


_GETTER = _RawHeaderGetter()
_EMPTY = Context()


def extract_context(headers: RawHeaders) -> Context:
    """Return the context that a request carries: a remote parent, baggage, or nothing.

    A malformed header is ignored, as the W3C specification requires.
    """
    return get_global_textmap().extract(headers, _EMPTY, getter=_GETTER)


def remote_parent(context: Context) -> SpanContext | None:
    """Return the caller's span in `context`; None if the request named no valid one."""
    span_context = get_current_span(context).get_span_context()
    return span_context if span_context.is_valid and span_context.is_remote else None


def remote_tracestate() -> str | None:
    """Return the `tracestate` of the current request's remote parent, "" if it has none; None without a parent."""
    parent = remote_parent(get_current())
    return parent.trace_state.to_header() if parent is not None else None


def traceparent_of(span_context: SpanContext) -> str:
    """Return the W3C `traceparent` header of a span."""
    return f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{span_context.trace_flags:02x}"


def context_headers() -> dict[str, str]:
    """Return the headers that pass the current trace context, and the caller's baggage, to another service."""
    traceparent = current_traceparent.get() or new_traceparent()
    context = get_current()
    parent = remote_parent(context)
    if parent is None or traceparent_of(parent) != traceparent:
        context = set_span_in_context(NonRecordingSpan(_span_context(traceparent.split("-"))), context)
    carrier: dict[str, str] = {}
    get_global_textmap().inject(carrier, context)
    return carrier


def _span_context(parts: Sequence[str]) -> SpanContext:
    """Build a span's context from the version, trace id, span id and flags of a traceparent."""
    return SpanContext(int(parts[1], 16), int(parts[2], 16), is_remote=True, trace_flags=TraceFlags(int(parts[3], 16)))
