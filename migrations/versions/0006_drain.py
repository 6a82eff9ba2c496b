"""Until when a node is to be emptied."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("alter table nodes add column drain_deadline_at timestamptz")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
