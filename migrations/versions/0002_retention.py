"""Retention: what is settled and old may be removed, row by row and then by whole days, and nothing else may."""

import re

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# The smallest UUIDv7 of a moment: older rows have smaller ids, so the primary key finds them.
FIRST_UUID_AT = """
create function first_uuid_at(moment timestamptz) returns uuid language sql immutable as $$
    select (lpad(to_hex((extract(epoch from moment) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;
"""

# Whoever may delete deletes settled actions only; dropping a partition fires no trigger.
ONLY_SETTLED = """
create function check_removal() returns trigger language plpgsql as $$
begin
    if old.state <> 'settled' then
        raise exception 'action % is %, and only a settled one is removed', old.id, old.state
            using errcode = 'check_violation';
    end if;
    return old;
end $$;

create trigger check_removal before delete on actions for each row execute function check_removal();
"""

# The last days stay, for the scheduler makes them ahead. A day is dropped once its rows are gone: that is quick,
# however many there were. Dropping locks the whole table, so it gives up at once where a reader is in its way.
DROP_PARTITIONS = """
create function drop_empty_partitions(before timestamptz) returns int
    language plpgsql security definer set search_path from current set lock_timeout = '100ms' as $$
declare
    dropped int := 0;
    day text;
    name text;
    filled boolean;
begin
    perform pg_advisory_xact_lock(hashtext('tangram.partitions'));
    for day in
        select substring(child.relname from '[0-9]{8}$')
          from pg_inherits
          join pg_class as child on child.oid = inhrelid
         where inhparent = 'actions'::regclass
           and child.relname ~ '^actions_[0-9]{8}$'
           and to_date(substring(child.relname from '[0-9]{8}$'), 'YYYYMMDD') < (before at time zone 'utc')::date - 1
         order by 1
    loop
        begin
            filled := false;
            foreach name in array array['actions_', 'action_specs_', 'action_results_'] loop
                continue when filled or to_regclass(name || day) is null;
                execute format('lock table %I in access exclusive mode', name || day);
                execute format('select exists (select from %I)', name || day) into filled;
            end loop;
            continue when filled;
            foreach name in array array['actions_', 'action_specs_', 'action_results_'] loop
                execute format('drop table if exists %I', name || day);
            end loop;
            dropped := dropped + 1;
        exception when lock_not_available then
            raise notice 'partition of % is in use', day;
        end;
    end loop;
    return dropped;
end $$;
"""

# An environment whose end the client asked for has given its name back; the others keep theirs as tombstones.
FORGOTTEN = """
create index environments_forgotten on environments (delete_requested_at)
    where delete_requested_at is not null and (ended_at is not null or lost_at is not null);
"""

# Rows that come and go make dead ones at the rate of the load: vacuum early, as in the partitions of a day.
# A lower fillfactor would bring nothing: each edge changes `state`, which partial indexes name, so none is HOT.
AUTOVACUUM = (
    "(autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 2)"
)
VACUUMED = ("actions_default", "action_specs_default", "action_results_default", "submissions")


def upgrade() -> None:
    for statements in (FIRST_UUID_AT, ONLY_SETTLED, DROP_PARTITIONS, FORGOTTEN):
        for statement in re.split(r";\n+(?=create )", statements):
            op.get_bind().exec_driver_sql(statement)
    op.get_bind().exec_driver_sql("revoke execute on function drop_empty_partitions(timestamptz) from public")
    for table in VACUUMED:
        op.get_bind().exec_driver_sql(f"alter table {table} set {AUTOVACUUM}")


def downgrade() -> None:
    raise NotImplementedError("a released migration is not taken back")
