"""Test that scrapes which overlap do not disturb each other."""

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry

from arl_kit import metrics as metrics_module
from arl_kit.metrics import Metrics


async def test_scrape_hook_waits_until_the_text_of_another_scrape_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook clears gauges. A thread that writes the text of another scrape would miss them."""
    events: list[str] = []
    loop, in_thread, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def write_text(registry: CollectorRegistry) -> bytes:
        events.append("text begins")
        loop.call_soon_threadsafe(in_thread.set)
        assert may_end.wait(30)
        events.append("text ends")
        return b""

    async def hook() -> None:
        events.append("hook")

    monkeypatch.setattr(metrics_module, "generate_latest", write_text)
    metrics = Metrics()
    metrics.add_scrape_hook(hook)
    first = asyncio.create_task(metrics.exposition())
    await in_thread.wait()
    second = asyncio.create_task(metrics.exposition())
    for _ in range(10):
        await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(first, second)
    assert events == ["hook", "text begins", "text ends"] * 2
