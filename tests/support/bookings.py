"""A log of every state change of actions, and the computation of peak allocations from it."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import asyncpg

__all__ = ["LOG_EDGES", "Edge", "edges_of", "most_held"]

# Rows keep only their last grant; this keeps all of them. A sequence numbers the edges as they are written: what a
# release gives back is committed, and so numbered, before anybody can decide to grant it again.
LOG_EDGES = """
    create table edge_log (
        number bigint generated always as identity primary key,
        id uuid not null, grant_no int not null, state text not null, node_id int, amounts jsonb, amounts_seq int,
        outcome text, settled_at timestamptz, xid xid8 not null default pg_current_xact_id()
    );
    create function log_edge() returns trigger language plpgsql security definer set search_path from current as $$
    begin
        insert into edge_log (id, grant_no, state, node_id, amounts, amounts_seq, outcome, settled_at)
        values (new.id, new.grant_no, new.state, new.node_id, new.amounts, new.amounts_seq, new.outcome,
                new.settled_at);
        return null;
    end $$;
    create trigger log_edge after update on actions for each row
        when (old.state is distinct from new.state or old.amounts is distinct from new.amounts
              or old.grant_no is distinct from new.grant_no or old.outcome is distinct from new.outcome
              or old.settled_at is distinct from new.settled_at)
        execute function log_edge();
"""

HELD = frozenset({"granted", "running"})


@dataclass(frozen=True, slots=True)
class Edge:
    """An action's state after one logged change."""

    id: UUID
    grant_no: int
    state: str
    node: int | None
    amounts: Mapping[str, int]


async def edges_of(connection: asyncpg.Connection | asyncpg.Pool) -> list[Edge]:
    """Return all logged changes in order."""
    rows = await connection.fetch("select * from edge_log order by number")
    return [
        Edge(row["id"], row["grant_no"], row["state"], row["node_id"], json.loads(row["amounts"] or "{}"))
        for row in rows
    ]


def most_held(edges: Iterable[Edge]) -> dict[int, dict[str, int]]:
    """Return the largest sum allocated at any moment, for each node and resource."""
    holds: dict[UUID, tuple[int, Mapping[str, int]]] = {}
    sums: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    most: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for edge in edges:
        if edge.id in holds:
            node, amounts = holds.pop(edge.id)
            for resource, amount in amounts.items():
                sums[node][resource] -= amount
        if edge.state not in HELD or edge.node is None:
            continue
        holds[edge.id] = (edge.node, edge.amounts)
        for resource, amount in edge.amounts.items():
            sums[edge.node][resource] += amount
            most[edge.node][resource] = max(most[edge.node][resource], sums[edge.node][resource])
    return {node: dict(resources) for node, resources in most.items()}
