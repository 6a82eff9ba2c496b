"""What the leader learnt of durations, by class of actions, so that the next leader knows it too."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

CLASS_ESTIMATES = """
create table class_estimates (
    class_key  bigint not null primary key,
    runs       json not null,
    seen_at    timestamptz not null default now()
)
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(CLASS_ESTIMATES)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
