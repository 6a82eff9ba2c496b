"""Scores of items beside the other results, and the reward services that a node offers."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("alter table action_results add column scores json")
    op.get_bind().exec_driver_sql("alter table nodes add column services jsonb not null default '[]'")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
