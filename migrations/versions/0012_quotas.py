"""How many actions of a task may run at once."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("alter table queues add column quota jsonb")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
