"""Join tokens: credentials of nodes that have not joined yet, and the removal of a joined node's role."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

JOIN_TOKENS = """
create table join_tokens (
    id           text not null primary key,
    node_name    text not null unique,
    proof_hash   bytea not null,
    credentials  bytea not null,
    created_at   timestamptz not null default now(),
    expires_at   timestamptz not null,
    used_at      timestamptz,
    claim_hash   bytea,
    used_from    text
)
"""
# Only nodes that joined have a `credential_id`. Others get their credentials again at each start of their system.
# It runs as the owner, because admission may not change roles. The owner of an external database may lack the right to
# end sessions. A session without a role reads no rows, since its role owns no node.
REVOKE_NODE = """
create function revoke_node(removed bigint) returns boolean
    language plpgsql security definer set search_path from current as $$
declare
    own text;
begin
    select r.role into own
      from node_roles as r
      join nodes as n on n.name = r.node_name and n.kind = r.kind
     where n.id = removed and r.credential_id is not null;
    if not found then
        return false;
    end if;
    delete from node_roles where role = own;
    delete from join_tokens where node_name = (select name from nodes where id = removed);
    update nodes set db_role = '' where id = removed;
    execute format('alter role %I nologin', own);
    begin
        perform pg_terminate_backend(pid) from pg_stat_activity where usename = own;
    exception when insufficient_privilege then
        null;
    end;
    execute format('drop role %I', own);
    return true;
end $$
"""
# A node may drain and reopen itself only, and only if it joined: other nodes can share a role.
DRAIN_OWN_NODE = """
create function drain_own_node(deadline_s float8) returns boolean
    language plpgsql security definer set search_path from current as $$
begin
    perform pg_advisory_xact_lock(hashtext('tangram.wishes'));
    update nodes as n
       set cordoned_at = case when deadline_s is not null then coalesce(n.cordoned_at, now()) end,
           drain_requested_at = case when deadline_s is not null then now() end,
           drain_deadline_at = now() + make_interval(secs => deadline_s)
      from node_roles as r
     where r.role = session_user
       and r.credential_id is not null
       and n.name = r.node_name
       and n.kind = r.kind;
    return found;
end $$
"""
STATEMENTS = [
    JOIN_TOKENS,
    "comment on column join_tokens.proof_hash is 'SHA-256 of what the node sends to show that it has the secret'",
    "comment on column join_tokens.credentials is 'encrypted with a key from the secret, which is not stored'",
    "comment on column join_tokens.claim_hash is 'SHA-256 of the random value of the node that used the token'",
    "alter table node_roles add column credential_id text unique",
    "alter table node_roles add column pool text not null default 'default'",
    "comment on column node_roles.credential_id is 'name in the service tokens of a node that joined'",
    REVOKE_NODE,
    "revoke execute on function revoke_node(bigint) from public",
    DRAIN_OWN_NODE,
    "comment on function drain_own_node is 'drains the node of the session within these seconds; null reopens it'",
    "revoke execute on function drain_own_node(float8) from public",
]


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
