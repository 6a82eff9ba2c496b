"""Sandboxes of E2B's protocol: what their environments do not have."""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

# No foreign key to `environments`: retention deletes their rows, and the row of a sandbox follows.
SANDBOXES = """
create table e2b_sandboxes (
    environment_id  uuid not null primary key,
    project_id      int not null references projects (id) on delete cascade,
    key_id          int not null,
    template        text not null,
    metadata        jsonb not null,
    variables       jsonb not null,
    access_token    text not null unique,
    created_at      timestamptz not null default now(),
    ends_at         timestamptz not null,
    paused_at       timestamptz
)
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(SANDBOXES)
    op.get_bind().exec_driver_sql("create index e2b_sandboxes_project on e2b_sandboxes (project_id)")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
