"""Logs as JSON lines, and the trace context of the current request (W3C Trace Context)."""

import json
import logging
import secrets
import sys
import time
from contextvars import ContextVar
from typing import Any

__all__ = ["current_traceparent", "new_traceparent", "set_up_logging", "trace_id_of"]

current_traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)


def new_traceparent() -> str:
    """Return a new W3C `traceparent` with random ids; it is sampled."""
    trace, span = (drawn := secrets.token_hex(24))[:32], drawn[32:]
    return f"00-{trace}-{span}-01"


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace id of a `traceparent`; None if there is no `traceparent`."""
    return traceparent.split("-")[1] if traceparent else None


class _JsonLines(logging.Formatter):
    converter = staticmethod(time.gmtime)
    """UTC, because log lines of several machines are read together."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one JSON line."""
        line: dict[str, Any] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := trace_id_of(current_traceparent.get()):
            line["trace_id"] = trace
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(service: str, level: str) -> None:
    """Log to standard error; called once at start-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("httpx", "aiohttp.access", "uvicorn.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
