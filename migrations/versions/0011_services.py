"""Reward services that operators registered, and what they wish of those that come along."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# One without a kind comes along with a node: its row has only wishes.
SERVICES = """
create table services (
    name              text primary key,
    kind              text,
    source            text,
    options           jsonb not null default '{}',
    pinned            boolean not null default false,
    drained_at        timestamptz,
    load_requested_at timestamptz,
    registered_at     timestamptz not null default now()
)
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(SERVICES)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
