"""Guards in Postgres: roles with column grants, the trigger made from `arl_core.domain.states`, and advisory locks."""

from collections.abc import Mapping
from hashlib import sha256

from arl_core.domain.states import MANAGER_ROLES, TRANSITIONS, ServiceRole, StateTransition

__all__ = [
    "DESIRED_STATE_LOCK",
    "GRANTS",
    "edge_trigger_statements",
    "grant_statements",
    "node_role_name",
    "policies",
    "role_name",
]

_STATELESS_MANAGER_GRANTS = (
    "select, update (state, outcome, reason, failures, admitted_xid, started_at, settled_at, run_us,"
    " counted_us) on actions",
    "select on action_specs",
    "insert on action_results",
    "select, insert (name, kind, url, epoch, driver, capacity, topology, enforced, templates, ends_at), update (url,"
    " epoch, driver, capacity, topology, enforced, templates, ends_at, services, endpoints, rates, registered_at)"
    " on nodes",
    "select, insert, update on node_beats",
    "select on node_roles",
)
"""Grants of managers whose actions leave no state on the node. Policies restrict them to the node's own rows."""
_OWN_NODES = "any (array(select n.id from nodes as n where n.db_role = session_user))"
_NODE_POLICIES = {
    "nodes": "db_role = session_user",
    "node_roles": "role = session_user",
    "actions": f"node_id = {_OWN_NODES}",
    "environments": f"node_id = {_OWN_NODES}",
    "snapshots": f"node_id = {_OWN_NODES}",
    "node_beats": f"node_id = {_OWN_NODES}",
    "node_images": f"node_id = {_OWN_NODES}",
    "node_layers": f"node_id = {_OWN_NODES}",
    # The policy of `actions` restricts what the subquery sees.
    "action_specs": "exists (select from actions as a where a.id = action_specs.id)",
    "action_results": "exists (select from actions as a where a.id = action_results.id)",
}
"""Conditions on the rows that a node's role reads and writes, by table.

They use `session_user`, because a node's role can change `current_user` to its kind's role by SET ROLE.
"""
_SERVICE_READS = (
    *("actions", "action_specs", "action_results", "attempts", "environments", "node_beats", "nodes", "projects"),
    *("queues", "services", "snapshots", "node_images"),
)
_STEP_READS = ("training_steps", "step_trajectories")
_LEADER_TABLES = ("leader_term", "leader_lease", "class_estimates", "prompt_passes")

GRANTS: Mapping[ServiceRole, tuple[str, ...]] = {
    ServiceRole.GATEWAY: (
        *(f"select on {table}" for table in (*_SERVICE_READS, *_STEP_READS, "api_keys", "audit_log", "submissions")),
        "insert, update on api_keys",
        "insert on projects",
        "insert on audit_log",
        "select, update (used_at, claim_hash, used_from) on join_tokens",
        "select (kind, node_name, pool) on node_roles",
        "select, insert, update, delete on pools",
        "select, insert, update, delete on e2b_sandboxes",
        "update (network, network_version) on environments",
    ),
    ServiceRole.ADMISSION: (
        *(f"select on {table}" for table in _SERVICE_READS if table != "action_results"),
        "select (id) on action_results",
        "select on submissions",
        "insert (id, project_id, queue_id, kind, trajectory, retries, idempotent, deadline_at) on actions",
        "insert on action_specs",
        "insert, update, delete on submissions",
        "delete on actions",  # only settled ones: a trigger checks this
        "delete on action_specs",
        "delete on action_results",
        "delete on attempts",  # only the trigger `keep_attempt` inserts
        "delete on environments",
        "insert, update on queues",
        "select, insert, update on training_steps",
        "insert, update, delete on services",
        "update (weight) on projects",
        "update (cancel_requested_at) on actions",
        "update (delete_requested_at, changed_xid) on environments",
        "update (cordoned_at, drain_requested_at, drain_deadline_at, self_drained_at) on nodes",
        "delete on node_beats",  # of silent nodes without allocations
        "update (delete_requested_at) on snapshots",
        "insert (node_id, name, state), update (state, bytes_done, reason, message, remove_requested_at, changed_at)"
        " on node_images",
    ),
    ServiceRole.SCHEDULER: (
        *(f"select on {table}" for table in (*_SERVICE_READS, *_STEP_READS, *_LEADER_TABLES)),
        "select (credential_id, kind) on node_roles",
        "update (state, outcome, reason, grant_no, node_id, node_epoch, environment_id, amounts, amounts_seq,"
        " failures, admitted_xid, granted_at, started_at, settled_at, is_critical) on actions",
        "update (lost_at, end_reason, changed_xid) on environments",
        "insert, update on leader_term",
        "insert, update on leader_lease",
        *(f"insert, update, delete on {table}" for table in ("class_estimates", "prompt_passes", "step_trajectories")),
        "delete on training_steps",
        "select on node_layers",
        "insert (node_id, name, state), update (state, bytes_done, reason, message, changed_at) on node_images",
    ),
    ServiceRole.CPU: (
        *_STATELESS_MANAGER_GRANTS,
        "select, insert, update (last_used_at, ended_at, lost_at, end_reason, changed_xid) on environments",
        "select, insert, delete on snapshots",
        "select, insert, update, delete on node_images",
        "select, insert, delete on node_layers",
    ),
    ServiceRole.GPU: (*_STATELESS_MANAGER_GRANTS, "select on services"),
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


def node_role_name(database: str, kind: ServiceRole, node_name: str) -> str:
    """Return the name of the role of one node. Node names may have any length and characters."""
    return f"{role_name(database, kind)}_{sha256(node_name.encode()).hexdigest()[:12]}"


def policies(database: str) -> dict[tuple[str, str], str]:
    """Return the statements that create the row security policies, by table and name.

    A name has a digest of its statement, so that policies are only replaced if they have changed.
    """
    services = ", ".join(_quote_identifier(role_name(database, role)) for role in _ordered_roles(managers=False))
    managers = ", ".join(_quote_identifier(role_name(database, role)) for role in _ordered_roles(managers=True))
    created: dict[tuple[str, str], str] = {}
    for table, condition in _NODE_POLICIES.items():
        for prefix, roles, rows in (("services", services, "true"), ("own_rows", managers, condition)):
            rest = f"on {table} to {roles} using ({rows}) with check ({rows})"
            name = f"{prefix}_{sha256(rest.encode()).hexdigest()[:12]}"
            created[table, name] = f"create policy {name} {rest}"
    return created


def grant_statements(database: str, role: ServiceRole) -> list[str]:
    """Return statements that grant `role` its rights and revoke all rights from earlier versions."""
    name = _quote_identifier(role_name(database, role))
    return [
        f"revoke all on all tables in schema public from {name}",
        f"grant usage on schema public to {name}",
        f"revoke all on all sequences in schema public from {name}",
        *(f"grant {what} to {name}" for what in GRANTS[role]),
        f"grant execute on function ensure_partitions(date, int) to {name}",
        *(
            [
                f"grant execute on function drop_empty_partitions(timestamptz) to {name}",
                f"grant execute on function revoke_node(text) to {name}",
            ]
            if role is ServiceRole.ADMISSION
            else []
        ),
        *([f"grant execute on function has_unsettled_actions(uuid) to {name}"] if role is ServiceRole.CPU else []),
        *(
            [
                f"grant execute on function names_of_own_tasks(uuid[]) to {name}",
                f"grant execute on function drain_own_node(float8) to {name}",
            ]
            if role in MANAGER_ROLES
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
        parts.append(f"({_is_writer(database, edge)})")
    return "(" + " and ".join(parts) + ")"


def _is_writer(database: str, edge: StateTransition) -> str:
    """Return the condition on the current user. Each node has its own role, a member of its kind's role."""
    services = [role_name(database, role) for role in sorted(edge.writers - MANAGER_ROLES)]
    managers = [role_name(database, role) for role in sorted(edge.writers & MANAGER_ROLES)]
    conditions = [f"current_user in ({_literals(services)})"] if services else []
    conditions += [f"pg_has_role(current_user, {_literals([name])}, 'usage')" for name in managers]
    return " or ".join(conditions)


def _ordered_roles(*, managers: bool) -> list[ServiceRole]:
    return [role for role in ServiceRole if (role in MANAGER_ROLES) == managers]


def _literals(values: list[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
