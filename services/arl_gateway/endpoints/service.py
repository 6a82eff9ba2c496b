"""Endpoints, as reported in the rows of the brokers."""

import json
from collections.abc import Iterable
from itertools import groupby

from arl_gateway.endpoints.queries import endpoints_by_node
from arl_gateway.http.auth import Caller
from arl_store.tx import PostgresStore, Row
from arl_wire.calls import Endpoint, EndpointListResponse, EndpointReplica
from arl_wire.errors import FieldError, NotFound

__all__ = ["EndpointService"]


class EndpointService:
    """The endpoints of all brokers, for clients."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def list(self, caller: Caller) -> EndpointListResponse:
        """List endpoints by name, with the details that the caller's project may see."""
        async with self._store.read() as tx:
            rows = [row for row in await endpoints_by_node(tx) if _is_visible(row, caller)]
        by_name = groupby(rows, key=lambda row: str(json.loads(row.said)["name"]))
        return EndpointListResponse(items=[_build_endpoint(name, its, caller) for name, its in by_name])

    async def get(self, name: str, caller: Caller) -> Endpoint:
        """Return an endpoint, with the details that the caller's project may see. Raises `NotFound`."""
        async with self._store.read() as tx:
            rows = [row for row in await endpoints_by_node(tx, name=name) if _is_visible(row, caller)]
        if not rows:
            message = f"endpoint {name!r} does not exist. `tangram endpoints list` shows the endpoints"
            raise NotFound(message, errors=[FieldError(field="name", message=message)])
        return _build_endpoint(name, rows, caller)


def _is_visible(row: Row, caller: Caller) -> bool:
    """Return True if the project may call the endpoint, or if the caller administers the installation."""
    projects = json.loads(row.said).get("projects")
    return projects is None or caller.project in projects or (caller.is_root and caller.has_scope("admin:read"))


def _build_endpoint(name: str, rows: Iterable[Row], caller: Caller) -> Endpoint:
    said = [(json.loads(row.said), row) for row in rows]
    administers = caller.is_root and caller.has_scope("admin:read")
    nodes = []
    for each, row in said:
        health = each["health"] if administers else each["health"].partition(":")[0]
        seen = {"health": health, "node": row.node, "available": row.available, "in_flight": row.in_flight}
        nodes.append(EndpointReplica.model_validate({**each, **seen}))
    return Endpoint(
        name=name,
        methods=said[0][0]["methods"],
        url=said[0][0]["url"] if administers else None,
        available=any(node.available for node in nodes),
        nodes=nodes,
    )
