"""The time at which a node ends, such as the end of its job in a batch system."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

STATEMENTS = (
    "alter table nodes add column ends_at timestamptz",
    "comment on column nodes.ends_at is 'time at which the machine ends the node; null if it has no known end'",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
