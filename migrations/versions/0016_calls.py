"""Calls of external APIs: what answered, and the endpoints that a broker has, with their rates."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

STATEMENTS = [
    "alter table action_results add column response json",
    "comment on column action_results.response is 'of a call: status, headers and attempts; its body is in stdout'",
    "alter table nodes add column endpoints jsonb not null default '[]'",
    "alter table nodes add column rates jsonb not null default '{}'",
    'comment on column nodes.rates is \'by resource: {"per_s": calls a second, "burst": calls at once after a pause}\'',
]


def upgrade() -> None:
    connection = op.get_bind()
    for statement in STATEMENTS:
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
