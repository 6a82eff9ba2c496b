"""What is known of attempts that ended without settling their action: each new grant overwrites the row's own."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

ATTEMPTS = """
create table attempts (
    id          uuid not null,
    grant_no    int not null,
    node_id     int,
    granted_at  timestamptz not null,
    started_at  timestamptz,
    ended_at    timestamptz not null default now(),
    reason      text,
    primary key (id, grant_no)
)
"""

# By a trigger, so that every manager's edges are covered and no service may write here. Its condition is all that an
# edge costs which ends no attempt. The reason belongs to the attempt: a queued action has none.
KEEP_ATTEMPT = """
create function keep_attempt() returns trigger language plpgsql security definer set search_path from current as $$
begin
    insert into attempts (id, grant_no, node_id, granted_at, started_at, reason)
    values (old.id, old.grant_no, old.node_id, coalesce(old.granted_at, now()), old.started_at, new.reason)
        on conflict do nothing;
    new.reason := null;
    return new;
end $$
"""
TRIGGER = """
create trigger keep_attempt before update on actions for each row
    when (new.state = 'queued' and old.state in ('granted', 'running')) execute function keep_attempt()
"""


def upgrade() -> None:
    for statement in (ATTEMPTS, KEEP_ATTEMPT, TRIGGER):
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
