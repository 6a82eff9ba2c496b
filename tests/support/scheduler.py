"""A leader in this process on a real Postgres, with peers that the test provides."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arl_core.policies.policy import SchedulingPolicy
from arl_kit.metrics import Metrics
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_scheduler.settings import SchedulerSettings
from arl_store.logins import role_url
from arl_store.wake import WakeNotifier
from support.peers import RecordingPeers
from support.postgres import PASSWORDS
from support.rows import Rows, store_of

__all__ = ["leading"]


@asynccontextmanager
async def leading(
    rows: Rows,
    peers: RecordingPeers | None = None,
    policy: SchedulingPolicy | None = None,
    metrics: Metrics | None = None,
    **changed: Any,
) -> AsyncIterator[SchedulingLoop]:
    """Run a leader that polls often and treats a node as lost after 0.3 s without heartbeats."""
    url = role_url(rows.owner_url, "scheduler", PASSWORDS["scheduler"])
    often = {"poll_busy_s": 0.03, "poll_idle_s": 0.03, "node_ttl_s": 0.3, "environment_loss_after_s": 0.6}
    settings = SchedulerSettings(port=1, database_url=url, service_token="t" * 16, **(often | changed))
    async with store_of(rows.owner_url, "scheduler") as store:
        notifier = WakeNotifier(url, name="scheduler")
        rounds = SchedulingLoop(store, peers or RecordingPeers(), notifier, settings, policy, metrics=metrics)
        rounds.start()
        try:
            yield rounds
        finally:
            await rounds.stop()
