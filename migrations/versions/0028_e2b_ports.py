"""The ports of E2B's sandboxes: whether they are open to clients without a token."""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql("alter table e2b_sandboxes add column has_public_ports boolean not null default true")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
