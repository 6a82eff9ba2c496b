"""Of an action that starts with others or not at all: of which gang it is, and how many they are."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("alter table action_specs add column gang jsonb")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
