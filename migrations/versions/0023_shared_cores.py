"""Sharing of cores: the form of the CPU demand, the clock of timeouts, and cores that running actions do not use."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

STATEMENTS = (
    "alter table action_specs add column cpu_sharing jsonb, add column wall_timeout_s float8",
    "alter table actions add column counted_us bigint",
    "alter table node_beats add column reclaimable_milli int not null default 0",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
