"""What was written in an environment, kept on its node for others to begin with."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Its id is that of the action that took it. The files are the node's; without a row they are nobody's.
SNAPSHOTS = """
create table snapshots (
    id                   uuid not null primary key,
    project_id           int not null,
    queue_id             int not null,
    trajectory           text not null,
    environment_id       uuid not null,
    node_id              int not null references nodes (id),
    template             text not null,
    memory_mib           int not null,
    disk_mib             int not null,
    pids                 int not null,
    members              int not null,
    bytes                bigint not null,
    created_at           timestamptz not null default now(),
    delete_requested_at  timestamptz
)
"""
INDEXES = (
    "create index snapshots_of_project on snapshots (project_id, id desc)",
    "create index snapshots_of_node on snapshots (node_id)",
)


def upgrade() -> None:
    for statement in (SNAPSHOTS, *INDEXES):
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
