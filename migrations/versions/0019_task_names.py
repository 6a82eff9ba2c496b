"""A node reads the names of its own tasks, for its metrics."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# A node passes the ids of actions that were granted to it. All rows are found by index, whatever the number of actions.
NAMES_OF_OWN_TASKS = """
create function names_of_own_tasks(ids uuid[]) returns table (id int, project text, task text)
    language sql stable security definer set search_path from current as $$
    select distinct q.id, p.name, q.task
      from actions as a
      join queues as q on q.id = a.queue_id
      join projects as p on p.id = q.project_id
     where a.id = any (ids)
       and exists (select from nodes as n
                    where n.db_role = session_user
                      and (n.id = a.node_id
                           or exists (select from attempts as t where t.id = a.id and t.node_id = n.id)))
$$
"""


STATEMENTS = [
    NAMES_OF_OWN_TASKS,
    "revoke execute on function names_of_own_tasks(uuid[]) from public",
    # Nodes no longer read these tables, so they need no policies. A policy had to scan `actions`.
    "alter table queues disable row level security",
    "alter table projects disable row level security",
]


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
