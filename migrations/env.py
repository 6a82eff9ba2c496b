"""Alembic's entry: runs in the transaction that `arl_store.migrate` opened, which holds the lock."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True)
context.run_migrations()
