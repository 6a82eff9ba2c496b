"""Statements about registered services."""

from sqlalchemy import text

from arl_store.tx import ReadTx, WriteTx
from arl_wire.internal.reward_services import ServiceOperationRequest
from arl_wire.reward_services.service import RegisterRewardServiceRequest

__all__ = ["change_service", "register_service", "registered_services", "remove_service"]

# A built-in service of a node also occupies its name. If no node has the service any more, its requested changes are
# reset.
REGISTER_SERVICE = text("""
    insert into services as s (name, kind, source, options)
    select :name, :kind, :source, cast(:options as jsonb)
     where not exists (select from nodes join node_beats on node_id = nodes.id, jsonb_array_elements(services) as n
                        where n ->> 'name' = :name and n ->> 'registered' is distinct from 'true')
        on conflict (name) do update
       set kind = excluded.kind, source = excluded.source, options = excluded.options,
           pinned = false, drained_at = null, load_requested_at = null, registered_at = now()
     where s.kind is null
""")

CHANGE_SERVICE = text("""
    insert into services as s (name, pinned, drained_at, load_requested_at)
    select :name, :verb = 'pin', case when :verb = 'drain' then now() end, case when :verb = 'load' then now() end
     where exists (select from services where name = :name)
        or exists (select from nodes join node_beats on node_id = nodes.id, jsonb_array_elements(services) as n
                    where n ->> 'name' = :name and n ->> 'registered' is distinct from 'true')
        on conflict (name) do update
       set pinned = case :verb when 'pin' then true when 'unpin' then false else s.pinned end,
           drained_at = case :verb when 'drain' then now() when 'resume' then null else s.drained_at end,
           load_requested_at = case :verb when 'load' then now() else s.load_requested_at end
""")

# Every unsettled score has a slot of its service or waits for one.
COUNT_UNSETTLED = text("""
    select count(*) as unsettled
      from actions as a
      join action_specs as s using (id)
     where a.state <> 'settled'
       and a.kind = 'score'
       and s.payload ->> 'service' = :name
""")

# An insert of an action of the service has a share of this lock until its commit.
LOCK_SERVICE = text("select from services where name = :name and kind is not null for update")

REMOVE_SERVICE = text("delete from services where name = :name and kind is not null")

SELECT_REGISTERED = text("select name, kind from services where kind is not null")


async def register_service(tx: WriteTx, service: RegisterRewardServiceRequest) -> int:
    """Register a service. Return 1, or 0 if the name is taken."""
    options = service.options.model_dump_json(exclude_none=True)
    return await tx.execute(REGISTER_SERVICE, {**service.model_dump(exclude={"options"}), "options": options})


async def change_service(tx: WriteTx, request: ServiceOperationRequest) -> int:
    """Change a service. Return 1, or 0 if it does not exist."""
    return await tx.execute(CHANGE_SERVICE, {"name": request.name, "verb": request.verb.value})


async def remove_service(tx: WriteTx, name: str) -> tuple[int, int]:
    """Remove a service without unsettled actions. Return the number of removed rows and of unsettled actions."""
    await tx.first(LOCK_SERVICE, {"name": name})
    row = await tx.first(COUNT_UNSETTLED, {"name": name})
    unsettled = int(row.unsettled) if row is not None else 0
    return (0 if unsettled else await tx.execute(REMOVE_SERVICE, {"name": name})), unsettled


async def registered_services(tx: ReadTx) -> dict[str, str]:
    """Return the kinds of the registered services by name."""
    return {row.name: row.kind for row in await tx.fetch(SELECT_REGISTERED)}
