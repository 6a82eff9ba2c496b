"""Guards in Postgres: roles with column grants, the trigger made from `arl_core.domain.states`, and advisory locks."""

from collections.abc import Mapping

from arl_core.domain.states import TRANSITIONS, ServiceRole, StateTransition

__all__ = ["DESIRED_STATE_LOCK", "GRANTS", "edge_trigger_statements", "grant_statements", "role_name"]

_STATELESS_MANAGER_GRANTS = (
    "update (state, outcome, reason, failures, admitted_xid, started_at, settled_at, run_us) on actions",
    "insert on action_results",
    "insert, update on nodes",
    "insert, update on node_beats",
)
"""Grants of managers whose actions leave no state on the node."""

GRANTS: Mapping[ServiceRole, tuple[str, ...]] = {
    ServiceRole.GATEWAY: (
        "insert, update on api_keys",
        "insert on projects",
        "insert on audit_log",
    ),
    ServiceRole.ADMISSION: (
        "insert (id, project_id, queue_id, kind, trajectory, retries, idempotent, deadline_at) on actions",
        "insert on action_specs",
        "insert, update, delete on submissions",
        "delete on actions",  # only settled ones: a trigger checks this
        "delete on action_specs",
        "delete on action_results",
        "delete on attempts",  # only the trigger `keep_attempt` inserts
        "delete on environments",
        "insert, update on queues",
        "insert, update, delete on services",
        "update (weight) on projects",
        "update (cancel_requested_at) on actions",
        "update (delete_requested_at, changed_xid) on environments",
        "update (cordoned_at, drain_requested_at, drain_deadline_at) on nodes",
        "delete on node_beats",  # of silent nodes without allocations
        "update (delete_requested_at) on snapshots",
    ),
    ServiceRole.SCHEDULER: (
        "update (state, outcome, reason, grant_no, node_id, node_epoch, environment_id, amounts, amounts_seq,"
        " failures, admitted_xid, granted_at, started_at, settled_at) on actions",
        "update (lost_at, end_reason, changed_xid) on environments",
        "insert, update on leader_term",
        "insert, update on leader_lease",
        "insert, update, delete on class_estimates",
    ),
    ServiceRole.CPU: (
        "update (state, outcome, reason, failures, admitted_xid, granted_at, started_at, settled_at, run_us,"
        " node_id, node_epoch, amounts) on actions",
        "insert on action_results",
        "insert, update on nodes",
        "insert, update on node_beats",
        "insert, update on environments",
        "insert, delete on snapshots",
    ),
    ServiceRole.GPU: _STATELESS_MANAGER_GRANTS,
    ServiceRole.API: _STATELESS_MANAGER_GRANTS,
}

DESIRED_STATE_LOCK = "hashtext('tangram.wishes')"
"""Advisory lock on the desired state. Every transaction of the leader takes it shared.

A transaction that cordons a node or pauses a queue takes it exclusively, so it waits for the last round that did not
see the change.
"""


def role_name(database: str, role: ServiceRole) -> str:
    """Return the name of a role. Roles belong to the whole cluster, so the name of the database is a prefix."""
    return f"{database}_{role.value}"


def grant_statements(database: str, role: ServiceRole) -> list[str]:
    """Return statements that grant `role` its rights and revoke all rights from earlier versions."""
    name = _quote_identifier(role_name(database, role))
    return [
        f"revoke all on all tables in schema public from {name}",
        f"grant usage on schema public to {name}",
        f"grant select on all tables in schema public to {name}",
        f"revoke all on installation from {name}",
        *(f"grant {what} to {name}" for what in GRANTS[role]),
        f"grant usage on all sequences in schema public to {name}",
        f"grant execute on function ensure_partitions(date, int) to {name}",
        *(
            [f"grant execute on function drop_empty_partitions(timestamptz) to {name}"]
            if role is ServiceRole.ADMISSION
            else []
        ),
    ]


def edge_trigger_statements(database: str, *, single_role: bool) -> list[str]:
    """Return statements that create the trigger. With `single_role` it checks transitions, but not their writers."""
    allowed = "\n        or ".join(_edge_condition(database, edge, single_role=single_role) for edge in TRANSITIONS)
    body = f"""
create or replace function check_edge() returns trigger language plpgsql as $$
begin
    if new.id <> old.id or new.created_at <> old.created_at
       or new.grant_no <> old.grant_no + (old.state = 'queued' and new.state = 'granted')::int then
        raise exception 'action %: id, created_at and grant_no are not for changing', old.id
            using errcode = 'check_violation';
    end if;
    -- Not true rather than false: a condition on a missing outcome is neither.
    if ({allowed}) is not true then
        raise exception 'action %: % -> % (%) is no edge for %',
            old.id, old.state, new.state, coalesce(new.outcome, '-'), current_user using errcode = 'check_violation';
    end if;
    return new;
end $$"""
    return [
        body,
        "create or replace trigger check_edge before update on actions for each row execute function check_edge()",
    ]


def _edge_condition(database: str, edge: StateTransition, *, single_role: bool) -> str:
    outcome = "new.outcome is null"
    if edge.outcomes:
        outcome = f"new.outcome in ({_literals(sorted(edge.outcomes))})"
    parts = [f"old.state = '{edge.old}'", f"new.state = '{edge.new}'", outcome]
    if not single_role:
        parts.append(f"current_user in ({_literals(sorted(role_name(database, role) for role in edge.writers))})")
    return "(" + " and ".join(parts) + ")"


def _literals(values: list[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
