"""What a node did with an attempt while it had it: its waits for a device, its batches, copies of weights."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("alter table action_results add column timeline json")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
