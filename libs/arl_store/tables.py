"""Tables for statements that are composed at run time; migrations create them.

Statements of fixed text name their columns directly, in the query modules of each service.
"""

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Integer, MetaData, SmallInteger, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSON, JSONB

__all__ = ["action_specs", "actions", "metadata", "nodes", "queues"]

metadata = MetaData()

actions = Table(
    "actions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("project_id", Integer, nullable=False),
    Column("queue_id", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("trajectory", Text),
    Column("environment_id", Uuid),
    Column("state", Text, nullable=False),
    Column("outcome", Text),
    Column("reason", Text),
    Column("grant_no", Integer, nullable=False),
    Column("node_id", Integer),
    Column("amounts", JSONB),
    Column("failures", SmallInteger, nullable=False),
    Column("cancel_requested_at", DateTime(timezone=True)),
    Column("deadline_at", DateTime(timezone=True)),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("granted_at", DateTime(timezone=True)),
    Column("started_at", DateTime(timezone=True)),
    Column("settled_at", DateTime(timezone=True)),
    Column("run_us", BigInteger),
    Column("counted_us", BigInteger),
    Column("is_critical", Boolean, nullable=False),
)

action_specs = Table(
    "action_specs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("class_key", BigInteger, nullable=False),
    Column("demand", JSONB, nullable=False),
    Column("elastic", JSONB),
    Column("cpu_sharing", JSONB),
    Column("labels", JSONB, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("gang", JSONB),
    Column("payload", JSON, nullable=False),
)

queues = Table(
    "queues",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("project_id", Integer, nullable=False),
    Column("task", Text, nullable=False),
)

nodes = Table("nodes", metadata, Column("id", Integer, primary_key=True), Column("name", Text, nullable=False))
