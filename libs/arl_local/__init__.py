"""The whole system on one machine: Postgres, the services and their launcher under one supervisor."""
