"""Listing, cordoning, draining and removal of nodes. Admission writes these changes."""

import json

from arl_gateway.audit_log.queries import insert_audit_log
from arl_gateway.http.auth import ROOT_PROJECT, Caller
from arl_gateway.nodes import queries as node_queries
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, Row, WriteTx
from arl_wire.admin.nodes import ChangeNodeRequest, EnforcementStatus, NodeInfo, NodeListResponse, NodeTemplate
from arl_wire.errors import Conflict, Forbidden, NotFound
from arl_wire.internal.admission import (
    AffectedRowsResponse,
    InternalChangeNodeRequest,
    RemoveNodeRequest,
    RemoveNodeResponse,
)

__all__ = ["NodeAdmin", "node_from_row"]


class NodeAdmin:
    """Administration of nodes. Changes need a key of the first project."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, admission_url: str) -> None:
        self._store = store
        self._peers = peers
        self._admission_url = admission_url

    async def list(self) -> NodeListResponse:
        """List all nodes by name, with their load."""
        async with self._store.read() as tx:
            rows = await node_queries.list_nodes(tx)
        return NodeListResponse(items=[node_from_row(row) for row in rows])

    async def change(self, name: str, request: ChangeNodeRequest, caller: Caller) -> NodeInfo:
        """Cordon, drain or reopen a node. Raises `NotFound`, and `Forbidden` for keys of other projects."""
        _require_root_project(caller)
        wish = InternalChangeNodeRequest(
            name=name, cordoned=request.cordoned, drain_deadline_s=request.drain_deadline_s
        )
        content = await self._peers.call(f"{self._admission_url}/internal/change-node", wish, audience="admission")
        if AffectedRowsResponse.model_validate_json(content).count == 0:
            raise NotFound(f"node {name!r} does not exist. `tangram nodes list` shows the nodes")
        async with self._store.write() as tx:
            await _write_audit_log(tx, caller, "node.change", name, request.model_dump_json(exclude_unset=True))
            row = await node_queries.node_by_name(tx, name)
        if row is None:
            raise NotFound(f"node {name!r} was removed meanwhile")
        return node_from_row(row)

    async def remove(self, name: str, caller: Caller) -> None:
        """Remove a node. Raises `Conflict` while it is alive or in use, and `NotFound`."""
        _require_root_project(caller)
        content = await self._peers.call(
            f"{self._admission_url}/internal/remove-node", RemoveNodeRequest(name=name), audience="admission"
        )
        answer = RemoveNodeResponse.model_validate_json(content)
        if answer.kept_by is not None:
            raise Conflict(f"node {name!r} cannot be removed: {answer.kept_by}. Drain it and stop it first")
        if not answer.removed:
            raise NotFound(f"node {name!r} does not exist. `tangram nodes list` shows the nodes")
        async with self._store.write() as tx:
            await _write_audit_log(tx, caller, "node.remove", name, "{}")


def _require_root_project(caller: Caller) -> None:
    """Raise `Forbidden` unless the key belongs to the first project; nodes serve all projects."""
    if not caller.is_root:
        raise Forbidden(f"nodes can be changed only with a key of project `{ROOT_PROJECT}`")


async def _write_audit_log(tx: WriteTx, caller: Caller, verb: str, name: str, detail: str) -> None:
    await insert_audit_log(
        tx, project_id=caller.project_id, api_key_id=caller.key_id, verb=verb, target=f"node:{name}", detail=detail
    )


def node_from_row(row: Row) -> NodeInfo:
    """Return the node of a row."""
    return NodeInfo(
        name=row.name,
        kind=row.kind,
        pool=row.pool,
        driver=row.driver,
        epoch=row.epoch,
        capacity=json.loads(row.capacity),
        registered_at=row.registered_at,
        last_heartbeat_at=row.last_beat,
        alive=row.alive,
        cordoned=row.cordoned,
        drain_deadline_at=row.drain_deadline_at,
        ends_at=row.ends_at,
        drained=row.drain_deadline_at is not None and not row.running and not row.environments,
        running=row.running,
        allocated_cpu_milli=row.allocated_cpu_milli,
        environments=row.environments,
        enforced=[EnforcementStatus(**entry) for entry in json.loads(row.enforced)],
        templates=[NodeTemplate(**entry) for entry in json.loads(row.templates)],
    )
