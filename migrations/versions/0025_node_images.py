"""Images on nodes: pulled by name, with progress and failures, and the layers that they consist of."""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

NODE_IMAGES = """
create table node_images (
    node_id              int not null references nodes (id) on delete cascade,
    name                 text not null,
    state                text not null check (state in ('wanted', 'pulling', 'ready', 'failed')),
    digest               text,
    bytes                bigint,
    bytes_done           bigint not null default 0,
    unpacked_bytes       bigint,
    layers               jsonb,
    pull_s               float8,
    reason               text,
    message              text,
    remove_requested_at  timestamptz,
    used_at              timestamptz,
    changed_at           timestamptz not null default now(),
    primary key (node_id, name)
)
"""
NODE_LAYERS = """
create table node_layers (
    node_id  int not null references nodes (id) on delete cascade,
    digest   text not null,
    primary key (node_id, digest)
)
"""
STATEMENTS = (
    NODE_IMAGES,
    "comment on column node_images.layers is 'compressed bytes of each layer, by the digest of its content'",
    "create index node_images_by_name on node_images (name)",
    NODE_LAYERS,
    # Policies name roles, so `arl_store.guards` makes them.
    "alter table node_images enable row level security",
    "alter table node_layers enable row level security",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
