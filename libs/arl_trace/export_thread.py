"""A thread for span exporters, which would block the event loop."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

__all__ = ["ExportThread"]

Job = tuple[Sequence[ReadableSpan], asyncio.AbstractEventLoop, "asyncio.Future[str | None]"]


class ExportThread:
    """A daemon thread that exports one list of spans at a time. A hanging collector never delays the process end."""

    def __init__(self, exporters: Sequence[SpanExporter], *, batch_spans: int) -> None:
        self._exporters = exporters
        self._batch_spans = batch_spans
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._reasons = _LastMessage()

    def start(self) -> None:
        """Start the thread."""
        # The SDK's exporters log every attempt and return only success or failure: their last message is the reason.
        logger = logging.getLogger("opentelemetry.exporter")
        logger.addHandler(self._reasons)
        logger.propagate = False
        threading.Thread(target=self._run, name="span export", daemon=True).start()

    def stop(self) -> None:
        """End the thread after its current export."""
        self._jobs.put(None)
        logger = logging.getLogger("opentelemetry.exporter")
        logger.removeHandler(self._reasons)
        logger.propagate = True

    async def export(self, spans: Sequence[ReadableSpan]) -> str | None:
        """Pass the spans to every exporter. Return None on success, else the reason of the first failure."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str | None] = loop.create_future()
        self._jobs.put((spans, loop, done))
        return await done

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            spans, loop, done = job
            reason = self._export(spans)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_resolve, done, reason)

    def _export(self, spans: Sequence[ReadableSpan]) -> str | None:
        for begin in range(0, len(spans), self._batch_spans):
            batch = spans[begin : begin + self._batch_spans]
            for exporter in self._exporters:
                self._reasons.last = None
                try:
                    result = exporter.export(batch)
                except Exception as error:  # noqa: BLE001 - exporters are plug-ins
                    return repr(error)
                if result is not SpanExportResult.SUCCESS:
                    return self._reasons.last or f"{type(exporter).__name__} failed"
        return None


class _LastMessage(logging.Handler):
    """A log handler that keeps the last message and writes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of the record."""
        self.last = record.getMessage()


def _resolve(done: "asyncio.Future[str | None]", reason: str | None) -> None:
    if not done.done():
        done.set_result(reason)
