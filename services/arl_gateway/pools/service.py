"""Listing, publication and removal of node pools, and their gauges."""

import logging

from arl_gateway.audit_log.queries import insert_audit_log
from arl_gateway.http.auth import ROOT_PROJECT, Caller
from arl_gateway.pools import queries
from arl_kit.metrics import Metrics
from arl_store.tx import PostgresStore, Row, WriteTx
from arl_wire.admin.pools import PoolInfo, PoolListResponse, PublishPoolRequest
from arl_wire.errors import Conflict, Forbidden, NotFound

__all__ = ["PoolAdmin"]

log = logging.getLogger(__name__)

_AUDITED = ("kind", "engine", "min_nodes", "max_nodes", "controller")
"""Columns whose change is an entry of the audit log. The others change with the load."""


class PoolAdmin:
    """Administration of pools. A pool belongs to one controller at a time, by a lease."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def list(self) -> PoolListResponse:
        """List all pools by name."""
        async with self._store.read() as tx:
            rows = await queries.list_pools(tx)
        return PoolListResponse(items=[_pool_from_row(row) for row in rows])

    async def publish(self, name: str, request: PublishPoolRequest, caller: Caller) -> PoolInfo:
        """Write the state of a pool, and extend the controller's lease.

        Raises `Conflict` if another controller owns the pool, and `Forbidden` for keys of other projects.
        """
        _require_root_project(caller)
        async with self._store.write() as tx:
            before = await queries.pool_by_name(tx, name, lock=True)
            is_owned = await queries.publish_pool(tx, {"name": name, **request.model_dump()})
            row = await queries.pool_by_name(tx, name)
            if row is None or not is_owned:
                owner = row.controller if row is not None else "unknown"
                raise Conflict(
                    f"pool {name!r} belongs to controller {owner!r}. Stop it, or wait until its lease of 10 s expires"
                )
            if before is None or any(before[column] != row[column] for column in _AUDITED):
                detail = request.model_dump_json(include=set(_AUDITED))
                await _write_audit_log(tx, caller, "pool.change", name, detail)
        return _pool_from_row(row)

    async def remove(self, name: str, caller: Caller) -> None:
        """Remove a pool from the list; its nodes stay. Raises `Conflict` while a controller owns it, and `NotFound`."""
        _require_root_project(caller)
        async with self._store.write() as tx:
            row = await queries.pool_by_name(tx, name, lock=True)
            if row is None:
                raise NotFound(f"pool {name!r} does not exist. `tangram pools list` shows the pools")
            if not await queries.delete_pool(tx, name):
                raise Conflict(f"pool {name!r} belongs to controller {row.controller!r}. Stop the controller first")
            await _write_audit_log(tx, caller, "pool.remove", name, "{}")

    def register_metrics(self, metrics: Metrics) -> None:
        """Add the gauges of pools. One query at each scrape reads them."""
        gauges = {
            column: metrics.gauge(f"pool_{column}_nodes", f"{meaning} of a pool, by name", "pool")
            for column, meaning in {
                "wanted": "Nodes that the controller wants",
                "present": "Nodes that the engine has",
                "ready": "Nodes that are alive and accept new actions",
                "draining": "Nodes that are being drained",
            }.items()
        }
        controlled = metrics.gauge("pool_controlled", "1 if a controller owns the pool, otherwise 0, by name", "pool")

        async def refresh() -> None:
            """Set the gauges from the rows. Without the database there are none, and the scrape succeeds."""
            for gauge in (*gauges.values(), controlled):
                gauge.clear()
            try:
                pools = (await self.list()).items
            except Exception as error:  # noqa: BLE001 - a scrape must show the other metrics during an outage
                log.warning("the gauges of pools are unknown: %s", type(error).__name__)
                return
            for pool in pools:
                for column in ("wanted", "present", "ready"):
                    gauges[column].labels(pool.name).set(getattr(pool, column))
                gauges["draining"].labels(pool.name).set(len(pool.draining))
                controlled.labels(pool.name).set(pool.controlled)

        metrics.add_scrape_hook(refresh)


def _require_root_project(caller: Caller) -> None:
    """Raise `Forbidden` unless the key belongs to the first project; nodes serve all projects."""
    if not caller.is_root:
        raise Forbidden(f"pools can be changed only with a key of project `{ROOT_PROJECT}`")


async def _write_audit_log(tx: WriteTx, caller: Caller, verb: str, name: str, detail: str) -> None:
    await insert_audit_log(
        tx, project_id=caller.project_id, api_key_id=caller.key_id, verb=verb, target=f"pool:{name}", detail=detail
    )


def _pool_from_row(row: Row) -> PoolInfo:
    return PoolInfo.model_validate(dict(row))
