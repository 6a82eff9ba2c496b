"""Networks of environments and their snapshots, and the use of the network by actions."""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

# Null means no network, which all earlier environments have.
STATEMENTS = (
    "alter table environments add column network jsonb, add column network_version int not null default 0",
    "alter table snapshots add column network jsonb",
    "alter table action_results add column network json",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
