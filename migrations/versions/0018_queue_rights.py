"""Row security for queues and projects: a node reads the names of its own tasks, for its metrics."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# Policies name roles, so `arl_store.guards` makes them. Without a policy only the owner sees rows.
SECURED = ("queues", "projects")


def upgrade() -> None:
    for table in SECURED:
        op.get_bind().exec_driver_sql(f"alter table {table} enable row level security")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
