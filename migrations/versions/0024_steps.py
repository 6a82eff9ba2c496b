"""Training steps: hints of trajectories, critical grants, ended steps, and the progress of trajectories by step."""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

STATEMENTS = (
    "alter table action_specs add column hints jsonb",
    "alter table actions add column is_critical boolean not null default false",
    """
create table training_steps (
    queue_id     int not null,
    step         int not null,
    ended_at     timestamptz not null default now(),
    changed_xid  xid8 not null default pg_current_xact_id(),
    primary key (queue_id, step)
)
""",
    "create index training_steps_changed on training_steps (changed_xid)",
    """
create table step_trajectories (
    queue_id        int not null,
    step            int not null,
    trajectory      text not null,
    prompt          text,
    trajectory_group  text,
    expected_turns  int,
    progress        float8,
    node_id         int,
    started_at      timestamptz not null,
    active_at       timestamptz not null,
    ended_at        timestamptz,
    turns           int not null,
    think_s         float8 not null,
    queue_s         float8 not null,
    run_s           float8 not null,
    core_wait_s     float8 not null,
    overhead_s      float8 not null,
    cpu_s           float8 not null,
    waits           json not null,
    rest_s          float8,
    log_deviation   float8,
    boost           text not null,
    saved_at        timestamptz not null default now(),
    primary key (queue_id, step, trajectory)
)
""",
    "create index step_trajectories_active on step_trajectories (active_at)",
    """
create table prompt_passes (
    queue_id  int not null,
    prompt    text not null,
    passes    json not null,
    seen_at   timestamptz not null default now(),
    primary key (queue_id, prompt)
)
""",
    "create index prompt_passes_seen on prompt_passes (seen_at)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
