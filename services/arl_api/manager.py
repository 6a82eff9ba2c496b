"""The node of the broker. Its resources are calls of its endpoints.

The manager contract is in `arl_node`. Nothing outlives this process, so each start has a new epoch, and the scheduler
reclaims the allocations of an earlier one.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from arl_api import repository
from arl_api.broker import EndpointBroker
from arl_api.calls import CallReport, EndpointCall, call_from_row
from arl_api.endpoint_queue import EndpointQueue
from arl_api.metrics import ApiMetrics
from arl_api.settings import ApiSettings, EndpointSettings
from arl_core.domain.model import Fence, call_resource
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_node.grants import GrantLifecycle
from arl_node.slot_node import SlotNode
from arl_store.tx import PostgresStore, Row, WriteTx
from arl_store.wake import WakeNotifier

__all__ = ["ApiManager"]

RANGE_HEADERS = frozenset({"range", "if-range"})
"""Headers with which a caller chooses parts of a response that are too short for the redaction of secrets."""
COUNT_INTERVAL_S = 5.0
"""Seconds between writes of changed counters, unless another value changes."""


class ApiManager(SlotNode[CallReport]):
    """The manager of a broker node. It implements `arl_node.grants.NodeBackend`."""

    def __init__(
        self,
        store: PostgresStore,
        service_client: ServiceClient,
        notifier: WakeNotifier,
        settings: ApiSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        metrics = metrics or Metrics()
        self._metrics = ApiMetrics(metrics)
        metrics.add_scrape_hook(self._update_metrics)
        self._broker = EndpointBroker(
            settings.endpoints, self._metrics, report=self._settle_in_background, can_send=self._can_send
        )
        super().__init__()
        # Calls granted before an endpoint's window shrank wait here. Refused calls would be granted again at once.
        self.set_capacity({call_resource(name): each.concurrency for name, each in self._endpoints.items()})
        self._grants: GrantLifecycle[CallReport] = GrantLifecycle(
            self, store=store, service_client=service_client, notifier=notifier, settings=settings, metrics=metrics
        )
        self._known_lapses = 0
        self._published_endpoints: list[dict[str, Any]] = []
        self._published_counts: list[dict[str, int]] = []
        self._counts_published_at = float("-inf")
        self.failed: str | None = "the manager has not registered yet"

    async def start(self) -> None:
        """Register the node with its endpoints, then start the heartbeat."""
        node = self._node_description()
        await self._grants.prepare_registration(node)
        async with self._store.write() as tx:
            await self._grants.register(tx, node)
            await self._write_endpoints(tx)
        self._grants.start(name="api-heartbeat")
        self.failed = None

    async def stop(self) -> None:
        """Stop polling, wait for calls in flight and stop the heartbeat."""
        await self._grants.stop_polling()
        await self._broker.stop(self._settings.grace_s)
        await self._grants.stop()

    async def poll(self) -> bool:
        """Publish changes, then start new grants and cancel calls. Return True if there is work."""
        await self._publish_changes()
        before, lapses = self.fences, self._grants.lease_lapses
        async with self._store.read() as tx:
            held = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
        await self._grants.start_from_poll(held, allocated_before=before)
        await self._grants.kill_lost_or_cancelled(held, allocated_before=before)
        self._known_lapses = lapses
        return bool(held)

    async def start_rows(self, fences: Sequence[Fence]) -> Sequence[Row]:
        """Commit `granted -> running` and return the rows that changed."""
        async with self._store.statement() as tx:
            return await repository.start(tx, fences, epoch=self.epoch)

    async def load(self, ids: Sequence[UUID]) -> Sequence[Row]:
        """Return running rows of this node."""
        async with self._store.read() as tx:
            return await repository.load(tx, ids, epoch=self.epoch)

    async def launch(self, rows: Mapping[Fence, Row]) -> None:
        """Send calls that are running by their rows. A call that cannot be sent is reported."""
        for fence, row in rows.items():
            if fence not in self._resources_by_fence:
                continue
            if row.cancel or self._grants.is_killed(fence):
                self._settle_in_background(CallReport(fence=fence, outcome="cancelled"))
                continue
            try:
                call = call_from_row(row)
            except (LookupError, TypeError, ValueError) as error:
                message = f"the request of the call cannot be parsed: {type(error).__name__}"
                self._settle_in_background(
                    CallReport(fence=fence, outcome="infra_error", reason="setup_failed", message=message)
                )
                continue
            if (refused := self._refusal(call)) is not None:
                self._settle_in_background(refused)
            else:
                self._broker.add(call)

    async def kill(self, fences: Sequence[Fence]) -> None:
        """Cancel calls; each still reports."""
        self._broker.cancel(fences)

    async def settle(self, reports: Sequence[CallReport], *, epoch: UUID) -> Sequence[Row]:
        """Commit outcomes and return the rows that settled or were re-queued."""
        async with self._store.statement() as tx:
            return await repository.settle(tx, reports, epoch=epoch)

    def encode_report(self, report: CallReport) -> bytes:
        """Return the report as bytes for the spool."""
        return report.encode()

    def decode_report(self, data: bytes) -> CallReport:
        """Return the report of `encode_report`."""
        return CallReport.decode(data)

    def _can_send(self) -> bool:
        """Return True if the lease is valid and a poll has found the calls that were lost during its last lapse."""
        return self._grants.can_start and self._known_lapses == self._grants.lease_lapses

    def _refusal(self, call: EndpointCall) -> CallReport | None:
        """Return the report of a call that cannot be sent, or None.

        Admission may have accepted it before it knew this broker or its present settings.
        """
        endpoint = self._endpoints.get(call.endpoint)
        if endpoint is None:
            message = f"this broker no longer has endpoint {call.endpoint!r}"
            return CallReport(fence=call.fence, outcome="infra_error", reason="endpoint_gone", message=message)
        if call.method not in endpoint.methods:
            message = f"endpoint {call.endpoint} does not allow {call.method}. Allowed: {', '.join(endpoint.methods)}"
            return CallReport(fence=call.fence, outcome="user_error", message=message)
        if endpoint.secrets and any(name.lower() in RANGE_HEADERS for name in call.headers):
            message = (
                f"endpoint {call.endpoint} does not allow Range: parts of a response could reveal its key bit by bit."
                " Remove the header"
            )
            return CallReport(fence=call.fence, outcome="user_error", message=message)
        return None

    @property
    def _endpoints(self) -> Mapping[str, EndpointSettings]:
        return self._settings.endpoints

    def _settle_in_background(self, report: CallReport) -> None:
        self._grants.run_in_background(self._grants.settle(report))

    async def _update_metrics(self) -> None:
        self._metrics.update(self._broker.queues)

    async def _publish_changes(self) -> None:
        """Publish endpoints that have changed since they were last published."""
        is_to_count = (
            self._published_counts != self._counts()
            and time.monotonic() - self._counts_published_at >= COUNT_INTERVAL_S
        )
        if self._endpoint_descriptions() != self._published_endpoints or is_to_count:
            async with self._store.statement() as tx:
                await self._write_endpoints(tx)

    async def _write_endpoints(self, tx: WriteTx) -> None:
        said, counted = self._endpoint_descriptions(), self._counts()
        lanes = self._broker.queues
        endpoints = [{**each, **counts} for each, counts in zip(said, counted, strict=True)]
        capacity = {call_resource(name): lane.window.size for name, lane in lanes.items()}
        rates = {
            call_resource(name): {"per_s": rate.per_s, "burst": rate.burst}
            for name, lane in lanes.items()
            if (rate := lane.settings.rate) is not None
        }
        await repository.publish(
            tx, *map(json.dumps, (endpoints, capacity, rates)), node_id=self.node_id, epoch=self.epoch
        )
        self._published_endpoints, self._published_counts, self._counts_published_at = said, counted, time.monotonic()

    def _endpoint_descriptions(self) -> list[dict[str, Any]]:
        """Return the endpoints without secrets."""
        return [_describe_endpoint(name, lane) for name, lane in self._broker.queues.items()]

    def _counts(self) -> list[dict[str, int]]:
        """Return the counters in the order of `_endpoint_descriptions`."""
        return [{"requests": lane.requests, "throttled": lane.throttled} for lane in self._broker.queues.values()]

    def _node_description(self) -> dict[str, Any]:
        """Return the row of this node."""
        return {
            "name": self._settings.node_name,
            "kind": "api",
            "url": self._settings.url,
            "epoch": uuid4(),
            "driver": "http",
            "capacity": "{}",
            "topology": "{}",
            "enforced": "[]",
            "templates": "[]",
        }


def _describe_endpoint(name: str, queue: EndpointQueue) -> dict[str, Any]:
    settings = queue.settings
    rate = settings.rate
    return {
        "name": name,
        "url": settings.url,
        "methods": list(settings.methods),
        "projects": list(settings.projects) if settings.projects is not None else None,
        "concurrency": settings.concurrency,
        "window": queue.window.size,
        "per_s": rate.per_s if rate is not None else None,
        "burst": rate.burst if rate is not None else None,
        "health": queue.health,
    }
