"""The first schema: actions, their specs and results, nodes, environments, leadership, keys."""

import re

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TENANTS = """
create table projects (
    id          int generated always as identity primary key,
    name        text not null unique,
    created_at  timestamptz not null default now()
);

create table queues (
    id          int generated always as identity primary key,
    project_id  int not null references projects (id),
    task        text not null,
    weight      real not null default 1 check (weight > 0),
    max_queued  int check (max_queued > 0),
    paused_at   timestamptz,
    created_at  timestamptz not null default now(),
    unique (project_id, task)
);

create table api_keys (
    id          int generated always as identity primary key,
    project_id  int not null references projects (id),
    prefix      text not null,
    hash        bytea not null unique,
    scopes      text[] not null,
    created_at  timestamptz not null default now(),
    expires_at  timestamptz,
    revoked_at  timestamptz
);

create table audit_log (
    id          bigint generated always as identity primary key,
    at          timestamptz not null default now(),
    project_id  int,
    api_key_id  int,
    verb        text not null,
    target      text not null,
    detail      jsonb not null default '{}'
);
"""

# `actions` stays narrow: every edge copies the row. What no edge needs is in `action_specs`.
ACTIONS = """
create table actions (
    id                   uuid not null primary key,
    project_id           int not null,
    queue_id             int not null,
    kind                 text not null,
    trajectory           text,
    environment_id       uuid,
    state                text not null default 'queued' check (state in ('queued', 'granted', 'running', 'settled')),
    outcome              text,
    reason               text,
    grant_no             int not null default 0,
    node_id              int,
    node_epoch           uuid,
    amounts              jsonb,
    amounts_seq          int not null default 0,
    failures             smallint not null default 0,
    retries              smallint not null default 0,
    idempotent           boolean not null default false,
    admitted_xid         xid8 not null default pg_current_xact_id(),
    cancel_requested_at  timestamptz,
    deadline_at          timestamptz,
    created_at           timestamptz not null default now(),
    granted_at           timestamptz,
    started_at           timestamptz,
    settled_at           timestamptz,
    run_us               bigint,
    constraint outcome_when_settled check ((state = 'settled') = (outcome is not null)),
    constraint holder_when_held check (
        state not in ('granted', 'running') or (node_id is not null and amounts is not null)
    )
) partition by range (id);

create index actions_queued on actions (admitted_xid) where state = 'queued';
create index actions_held on actions (node_id) where state in ('granted', 'running');
create index actions_to_cancel on actions (id) where cancel_requested_at is not null and state <> 'settled';
create index actions_of_queue on actions (queue_id, id);
create index actions_of_trajectory on actions (queue_id, trajectory, id) where trajectory is not null;

create table action_specs (
    id           uuid not null primary key,
    class_key    bigint not null,
    shape        text not null,
    demand       jsonb not null,
    elastic      jsonb,
    environment  jsonb not null,
    priority     smallint not null default 0,
    timeout_s    real not null,
    step         int,
    labels       jsonb not null default '{}',
    traceparent  text,
    tracestate   text,
    payload      json not null
) partition by range (id);

create table action_results (
    id               uuid not null primary key,
    grant_no         int not null,
    exit_code        int,
    signal           smallint,
    stdout           bytea not null default '',
    stderr           bytea not null default '',
    stdout_bytes     bigint not null default 0,
    stderr_bytes     bigint not null default 0,
    files            json not null default '{}',
    missing_files    text[] not null default '{}',
    cpu_us           bigint not null default 0,
    peak_memory_kib  bigint not null default 0,
    leftover_processes      int not null default 0,
    message          text,
    enforcement      jsonb not null default '{}'
) partition by range (id);

create table actions_default partition of actions default;
create table action_specs_default partition of action_specs default;
create table action_results_default partition of action_results default;

create table submissions (
    project_id  int not null,
    key         text not null,
    body_hash   bytea not null,
    ids         uuid[] not null,
    expires_at  timestamptz not null,
    primary key (project_id, key)
);
create index submissions_by_expiry on submissions (expires_at);
"""

# UUIDv7 begins with 48 bits of milliseconds since the epoch, so a day is a range of ids.
PARTITIONS = """
create function first_uuid_of(day date) returns uuid language sql immutable as $$
    select (lpad(to_hex((extract(epoch from day::timestamp) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

create function ensure_partitions(first_day date, days int) returns int
    language plpgsql security definer set search_path from current as $$
declare
    made int := 0;
    day date;
    parent text;
    child text;
begin
    perform pg_advisory_xact_lock(hashtext('tangram.partitions'));
    foreach parent in array array['actions', 'action_specs', 'action_results'] loop
        for i in 0 .. days - 1 loop
            day := first_day + i;
            child := parent || '_' || to_char(day, 'YYYYMMDD');
            continue when to_regclass(child) is not null;
            begin
                execute format('create table %I partition of %I for values from (%L) to (%L)',
                               child, parent, first_uuid_of(day), first_uuid_of(day + 1));
                execute format('alter table %I set (autovacuum_vacuum_scale_factor = 0.05,'
                               ' autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 2)', child);
                made := made + 1;
            exception when check_violation then
                -- Rows of that day lie in the default partition already: it keeps that day.
                raise notice 'no partition % was made', child;
            end;
        end loop;
    end loop;
    return made;
end $$;
"""

NODES = """
create table nodes (
    id                  int generated always as identity primary key,
    name                text not null unique,
    kind                text not null,
    url                 text not null,
    epoch               uuid not null,
    driver              text not null,
    capacity            jsonb not null,
    topology            jsonb not null default '{}',
    enforced            jsonb not null default '[]',
    registered_at       timestamptz not null default now(),
    cordoned_at         timestamptz,
    drain_requested_at  timestamptz
);

-- Beats live apart, in a narrow table without a second index, so that each is a HOT update.
create table node_beats (
    node_id    int not null primary key references nodes (id),
    epoch      uuid not null,
    last_beat  timestamptz not null default now()
) with (fillfactor = 50);

create table environments (
    id                   uuid not null primary key,
    project_id           int not null,
    queue_id             int not null,
    trajectory           text not null,
    node_id              int not null references nodes (id),
    node_epoch           uuid not null,
    template             text not null,
    memory_mib           int not null,
    disk_mib             int not null,
    pids                 int not null,
    idle_ttl_s           int not null,
    created_at           timestamptz not null default now(),
    last_used_at         timestamptz not null default now(),
    delete_requested_at  timestamptz,
    ended_at             timestamptz,
    lost_at              timestamptz,
    end_reason           text,
    changed_xid          xid8 not null default pg_current_xact_id()
);
-- One name, one environment: while it lives, and as a tombstone until the client deletes it.
create unique index environments_name on environments (queue_id, trajectory)
    where delete_requested_at is null or (ended_at is null and lost_at is null);
create index environments_changed on environments (changed_xid);
create index environments_live on environments (node_id) where ended_at is null and lost_at is null;
"""

# The term fences every write of a leader; the lease only says when another may take over.
LEADERSHIP = """
create table leader_term (
    cell    text not null primary key,
    term    bigint not null,
    holder  uuid
);
create table leader_lease (
    cell        text not null primary key,
    term        bigint not null,
    expires_at  timestamptz not null
) with (fillfactor = 50);
"""


def upgrade() -> None:
    for statements in (TENANTS, ACTIONS, PARTITIONS, NODES, LEADERSHIP):
        # The driver prepares each statement and so takes one at a time.
        for statement in re.split(r";\n+(?=create |insert |-- )", statements):
            op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("the first schema is not taken back; drop the database")
