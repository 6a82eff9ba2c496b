"""Node pools: their limits, the lease of their controller and its last decision."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

POOLS = """
create table pools (
    name              text not null primary key,
    kind              text not null check (kind in ('cpu', 'gpu', 'api')),
    engine            text not null,
    min_nodes         int not null check (min_nodes >= 0),
    max_nodes         int not null check (max_nodes >= min_nodes),
    cores_per_node    float8,
    wanted            int not null,
    present           int not null,
    ready             int not null,
    draining          text[] not null,
    decision          text not null,
    reason            text not null,
    decided_at        timestamptz not null default now(),
    updated_at        timestamptz not null default now(),
    controller        text not null,
    lease_expires_at  timestamptz not null
)
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(POOLS)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
