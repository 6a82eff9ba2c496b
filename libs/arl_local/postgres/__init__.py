"""The embedded Postgres of one machine."""
