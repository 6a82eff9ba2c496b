"""Projects have a weight too, and weights are what was written and not the nearest single-precision number."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

STATEMENTS = (
    "alter table queues alter column weight type float8",
    "alter table projects add column weight float8 not null default 1 check (weight > 0)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
