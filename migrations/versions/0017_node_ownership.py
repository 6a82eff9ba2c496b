"""Rows belong to nodes: which database role registered a node, and row security for the roles of nodes."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

NODE_ROLES = """
create table node_roles (
    role       text not null primary key,
    kind       text not null,
    node_name  text not null
)
"""
# `session_user` is the role that logged in. A node's role can change `current_user` to its kind's role by SET ROLE.
CHECK_NODE_OWNER = """
create function check_node_owner() returns trigger language plpgsql as $$
declare
    own record;
begin
    new.db_role := session_user;
    select kind, node_name into own from node_roles where role = session_user;
    if found and (own.kind <> new.kind or own.node_name <> new.name) then
        raise exception 'the role % belongs to the % node %, not to the % node %',
            session_user, own.kind, own.node_name, new.kind, new.name using errcode = 'insufficient_privilege';
    end if;
    return new;
end $$
"""
# An environment is not idle while actions wait for it. Their rows do not belong to a node yet.
HAS_UNSETTLED_ACTIONS = """
create function has_unsettled_actions(environment uuid) returns boolean
    language sql stable security definer set search_path from current as $$
    select exists (select from environments as e
                     join actions as a on a.queue_id = e.queue_id and a.trajectory = e.trajectory
                    where e.id = environment and a.state <> 'settled')
$$
"""
STATEMENTS = [
    NODE_ROLES,
    "alter table nodes add column db_role text not null default session_user",
    "comment on column nodes.db_role is 'the role that registered the node; only it changes the row'",
    "create index nodes_of_role on nodes (db_role)",
    CHECK_NODE_OWNER,
    "create trigger check_node_owner before insert on nodes for each row execute function check_node_owner()",
    HAS_UNSETTLED_ACTIONS,
    "revoke execute on function has_unsettled_actions(uuid) from public",
]
# Policies name roles, so `arl_store.guards` makes them. Without a policy only the owner sees rows.
SECURED = (
    "actions",
    "action_specs",
    "action_results",
    "nodes",
    "node_beats",
    "environments",
    "snapshots",
    "node_roles",
)


def upgrade() -> None:
    for statement in (*STATEMENTS, *(f"alter table {table} enable row level security" for table in SECURED)):
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
