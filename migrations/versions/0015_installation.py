"""Whose database it is: one row, which nobody but the owner reads."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

STATEMENTS = [
    """create table installation (
    only_row  boolean primary key default true check (only_row),
    passwords jsonb not null
)""",
    "comment on column installation.passwords is 'SHA-256 of the password of each service''s role, in hexadecimal'",
]


def upgrade() -> None:
    connection = op.get_bind()
    for statement in STATEMENTS:
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
