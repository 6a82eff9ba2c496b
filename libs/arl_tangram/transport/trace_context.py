"""Trace context of the caller: its current OpenTelemetry span becomes the parent of the actions that it submits.

`opentelemetry-api` is no dependency. A process that has not imported it has no current span, so nothing is sent and
nothing is imported.
"""

import logging
import sys
from collections.abc import Callable, MutableMapping
from functools import cache

import httpx

__all__ = ["add_trace_context", "add_trace_context_async"]

log = logging.getLogger(__name__)


def add_trace_context(request: httpx.Request) -> None:
    """Write the current context into the headers, as OTEL_PROPAGATORS says: traceparent, tracestate and baggage."""
    if "opentelemetry.context" in sys.modules and (inject := _injector()) is not None:
        inject(request.headers)


async def add_trace_context_async(request: httpx.Request) -> None:
    """Do the same as `add_trace_context`, as a hook of an asynchronous client."""
    add_trace_context(request)


@cache
def _injector() -> Callable[[MutableMapping[str, str]], None] | None:
    try:
        from opentelemetry.propagate import inject
    except ImportError:
        return None
    except ValueError as error:
        log.warning("no trace context is sent: OTEL_PROPAGATORS: %s", error)
        return None
    return inject
