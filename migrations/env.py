"""Alembic's entry: runs on the connection that `arl_store.migrate` hands over, which holds the lock."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
