"""Test the gauges of the leader's queues while names are read."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast
from uuid import UUID

from arl_kit.action_metrics import TaskLabels
from arl_kit.metrics import Metrics
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.leader_gauges import LeaderGauges
from arl_scheduler.metrics import SchedulerMetrics


class SlowLabels:
    """Labels whose names are read when `may_answer` is set."""

    def __init__(self) -> None:
        self.may_answer, self.reading = asyncio.Event(), asyncio.Event()

    async def load(self, _: Mapping[int, UUID | None]) -> None:
        self.reading.set()
        await self.may_answer.wait()

    def get(self, queue: int) -> tuple[str, str]:
        return "p", f"t{queue}"


async def test_queues_of_the_last_scrape_are_shown_until_the_names_of_new_queues_are_read() -> None:
    labels, metrics = SlowLabels(), Metrics()
    gauges = LeaderGauges(cast("TaskLabels", labels), SchedulerMetrics(metrics))

    async def update(*queues: int) -> None:
        depths = dict.fromkeys(queues, (3, 10.0))
        index = SimpleNamespace(allocation_count=0, queue_depths=lambda: depths)
        await gauges.update(cast("SchedulerIndex", index), is_leader=True, stragglers=0, classes=0, now=lambda: 15.0)

    def depth(task: str) -> float | None:
        return metrics.registry.get_sample_value("tangram_queue_depth", {"project": "p", "task": task})

    labels.may_answer.set()
    await update(1)
    labels.may_answer.clear()
    labels.reading.clear()
    scrape = asyncio.create_task(update(2))
    await labels.reading.wait()
    assert (depth("t1"), depth("t2")) == (3, None)
    labels.may_answer.set()
    await scrape
    assert (depth("t1"), depth("t2")) == (None, 3)
    assert metrics.registry.get_sample_value("tangram_queue_oldest_age_seconds", {"project": "p", "task": "t2"}) == 5
