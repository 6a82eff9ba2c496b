"""Environments of a project, newest first: without it a list reads those of all projects."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        "create index environments_listed on environments (project_id, created_at desc, id desc)"
    )


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
