"""Nodes say which templates environments can begin with there."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The template `host` is on every node and in no list.
    op.get_bind().exec_driver_sql("alter table nodes add column templates jsonb not null default '[]'")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
