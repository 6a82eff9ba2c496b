"""The broker's node: calls of its endpoints are what it has.

The contract itself is `arl_manager`'s. Nothing outlives this process, so each start is another epoch, and what an
earlier one held is taken back by the scheduler.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from arl_api import repository
from arl_api.broker import Broker
from arl_api.call import Call, Report, call_of
from arl_api.lane import Lane
from arl_api.metrics import ApiMetrics
from arl_api.settings import ApiSettings, EndpointSettings
from arl_core.fence import Fence
from arl_core.model import calls_of
from arl_kit.metrics import Metrics
from arl_kit.peers import Peers
from arl_manager.counted import CountedNode
from arl_manager.grants import Grants, Settled
from arl_store.tx import Row, Store, WriteTx
from arl_store.wake import Notifier

__all__ = ["Manager"]

COUNT_EVERY_S = 5.0
"""How often what only counts is written, unless something else changes."""


class Manager(CountedNode[Report]):
    """Answers `arl_manager.grants.Hardware`."""

    def __init__(
        self, store: Store, peers: Peers, notifier: Notifier, settings: ApiSettings, metrics: Metrics | None = None
    ) -> None:
        self._store = store
        self._settings = settings
        metrics = metrics or Metrics()
        self._metrics = ApiMetrics(metrics)
        metrics.on_scrape(self._show)
        self._broker = Broker(settings.endpoints, self._metrics, report=self._report, may_send=self._may_send)
        super().__init__()
        # What was granted before an endpoint bore less waits here for its turn: refused, it would come back at once.
        self.set_capacity({calls_of(name): each.concurrency for name, each in self._endpoints.items()})
        self._grants: Grants[Report] = Grants(
            self, store=store, peers=peers, notifier=notifier, settings=settings, metrics=metrics
        )
        self._lapses_known = 0
        self._said: list[dict[str, Any]] = []
        self._counted: list[dict[str, int]] = []
        self._counted_at = float("-inf")
        self.failed: str | None = "the manager has not registered yet"

    async def start(self) -> None:
        """Register with the endpoints that there are, then beat."""
        node = self._description()
        await self._grants.until_name_is_free(node)
        async with self._store.write() as tx:
            await self._grants.register(tx, node)
            await self._say(tx)
        self._grants.begin(name="api-heartbeat")
        self.failed = None

    async def stop(self) -> None:
        await self._grants.stop_looking()
        await self._broker.stop(self._settings.grace_s)
        await self._grants.end()

    async def poll(self) -> bool:
        await self._publish()
        before, lapses = self.fences, self._grants.lapses
        async with self._store.read() as tx:
            held = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
        await self._grants.start_found(held, before=before)
        await self._grants.end_unwanted(held, before=before)
        self._lapses_known = lapses
        return bool(held)

    async def start_rows(self, fences: Sequence[Fence]) -> Sequence[Row]:
        async with self._store.statement() as tx:
            return await repository.start(tx, fences, epoch=self.epoch)

    async def load(self, ids: Sequence[UUID]) -> Sequence[Row]:
        async with self._store.read() as tx:
            return await repository.load(tx, ids, epoch=self.epoch)

    async def launch(self, rows: Mapping[Fence, Row]) -> None:
        for fence, row in rows.items():
            if fence not in self._held:
                continue
            if row.cancel or self._grants.is_killed(fence):
                self._report(Report(fence=fence, outcome="cancelled"))
                continue
            try:
                call = call_of(row)
            except (LookupError, TypeError, ValueError) as error:
                message = f"its request can't be read: {type(error).__name__}"
                self._report(Report(fence=fence, outcome="infra_error", reason="setup_failed", message=message))
                continue
            if (refused := self._refusal(call)) is not None:
                self._report(refused)
            else:
                self._broker.add(call)

    async def kill(self, fences: Sequence[Fence]) -> None:
        self._broker.cancel(fences)

    async def settle(self, reports: Sequence[Report]) -> Settled:
        async with self._store.statement() as tx:
            return await repository.settle(tx, reports, epoch=self.epoch)

    def _may_send(self) -> bool:
        """The lease counts, and what was lost while it did not is known: that is here no more."""
        return self._grants.may_start and self._lapses_known == self._grants.lapses

    def _refusal(self, call: Call) -> Report | None:
        """Of what admission let in before it knew this broker, or while its settings were others."""
        endpoint = self._endpoints.get(call.endpoint)
        if endpoint is None:
            message = f"this broker has no endpoint {call.endpoint!r} any more"
            return Report(fence=call.fence, outcome="infra_error", reason="endpoint_gone", message=message)
        if call.method not in endpoint.methods:
            message = f"{call.endpoint} takes {', '.join(endpoint.methods)}, and no {call.method}"
            return Report(fence=call.fence, outcome="user_error", message=message)
        return None

    @property
    def _endpoints(self) -> Mapping[str, EndpointSettings]:
        return self._settings.endpoints

    def _report(self, report: Report) -> None:
        self._grants.in_background(self._grants.settle(report))

    async def _show(self) -> None:
        self._metrics.show(self._broker.lanes)

    async def _publish(self) -> None:
        """What has changed since it was said."""
        is_to_count = self._counted != self._counts() and time.monotonic() - self._counted_at >= COUNT_EVERY_S
        if self._described() != self._said or is_to_count:
            async with self._store.statement() as tx:
                await self._say(tx)

    async def _say(self, tx: WriteTx) -> None:
        said, counted = self._described(), self._counts()
        lanes = self._broker.lanes
        endpoints = [{**each, **counts} for each, counts in zip(said, counted, strict=True)]
        capacity = {calls_of(name): lane.window.size for name, lane in lanes.items()}
        rates = {
            calls_of(name): {"per_s": rate.per_s, "burst": rate.burst}
            for name, lane in lanes.items()
            if (rate := lane.settings.rate) is not None
        }
        await repository.publish(
            tx, *map(json.dumps, (endpoints, capacity, rates)), node_id=self.node_id, epoch=self.epoch
        )
        self._said, self._counted, self._counted_at = said, counted, time.monotonic()

    def _described(self) -> list[dict[str, Any]]:
        """Nothing in it is secret."""
        return [_described(name, lane) for name, lane in self._broker.lanes.items()]

    def _counts(self) -> list[dict[str, int]]:
        """In the same order."""
        return [{"requests": lane.requests, "throttled": lane.throttled} for lane in self._broker.lanes.values()]

    def _description(self) -> dict[str, Any]:
        """This node's row."""
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


def _described(name: str, lane: Lane) -> dict[str, Any]:
    settings = lane.settings
    rate = settings.rate
    return {
        "name": name,
        "url": settings.url,
        "methods": list(settings.methods),
        "concurrency": settings.concurrency,
        "window": lane.window.size,
        "per_s": rate.per_s if rate is not None else None,
        "burst": rate.burst if rate is not None else None,
        "health": lane.health,
    }
