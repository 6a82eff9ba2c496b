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
create function revoke_node(removed text) returns boolean
    language plpgsql security definer set search_path from current as $$
declare
    own text;
begin
    delete from join_tokens where node_name = removed;
    select role into own from node_roles where node_name = removed and credential_id is not null;
    if not found then
        return false;
    end if;
    delete from node_roles where role = own;
    update nodes set db_role = '' where name = removed;
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
# A node may drain itself only, and only if it joined: other nodes can share a role. It reopens itself only while nobody
# else has cordoned it.
DRAIN_OWN_NODE = """
create function drain_own_node(deadline_s float8) returns boolean
    language plpgsql security definer set search_path from current as $$
begin
    if not deadline_s between 0 and 30 * 86400 then
        raise exception 'the deadline must be from 0 s to 30 days' using errcode = 'invalid_parameter_value';
    end if;
    perform pg_advisory_xact_lock(hashtext('tangram.wishes'));
    update nodes as n
       set self_drained_at = case when deadline_s is null then null
                                  when n.cordoned_at is null then now()
                                  else n.self_drained_at end,
           cordoned_at = case when deadline_s is not null then coalesce(n.cordoned_at, now()) end,
           drain_requested_at = case when deadline_s is not null then now() end,
           drain_deadline_at = now() + make_interval(secs => deadline_s)
      from node_roles as r
     where r.role = session_user
       and r.credential_id is not null
       and n.name = r.node_name
       and n.kind = r.kind
       and (deadline_s is not null or n.self_drained_at is not null);
    return found;
end $$
"""
# The trigger of 0017, which now also copies the id of the credentials.
CHECK_NODE_OWNER = """
create or replace function check_node_owner() returns trigger language plpgsql as $$
declare
    own record;
begin
    new.db_role := session_user;
    select kind, node_name, credential_id into own from node_roles where role = session_user;
    if found and (own.kind <> new.kind or own.node_name <> new.name) then
        raise exception 'the role % belongs to the % node %, not to the % node %',
            session_user, own.kind, own.node_name, new.kind, new.name using errcode = 'insufficient_privilege';
    end if;
    new.credential_id := own.credential_id;
    return new;
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
    "alter table nodes add column credential_id text, add column self_drained_at timestamptz",
    "comment on column nodes.credential_id is 'of a node that joined; part of its name as a receiver of tokens'",
    "comment on column nodes.self_drained_at is 'time at which `tangram node down` cordoned the node'",
    CHECK_NODE_OWNER,
    REVOKE_NODE,
    "revoke execute on function revoke_node(text) from public",
    DRAIN_OWN_NODE,
    "comment on function drain_own_node is 'drains the node of the session within these seconds; null reopens it'",
    "revoke execute on function drain_own_node(float8) from public",
]


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
