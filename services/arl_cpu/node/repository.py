"""The SQL statements of the CPU manager. Every update is guarded by this node's epoch and the fence."""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import text

from arl_core.domain.model import Fence
from arl_core.domain.states import ENVIRONMENT_OUT_OF_MEMORY
from arl_cpu.contract.executor import ExecutionReport, NetworkVersion
from arl_cpu.images.image_repository import IMAGE_REQUESTS
from arl_node.repository import ACTIVE_ON_NODE, EDGE_ROWS, GRANTED_TO_NODE, fence_columns, reported_edge
from arl_store.tx import ReadTx, Row, WriteTx
from arl_store.values import storable, storable_json

__all__ = [
    "NodePollResult",
    "delete_snapshots",
    "end_environments",
    "list_live_environments",
    "list_snapshots",
    "load",
    "mark_environments_lost",
    "mark_other_epochs_lost",
    "poll",
    "publish_templates",
    "record_reclaimable",
    "record_snapshot",
    "settle",
    "start",
]

PUBLISH_TEMPLATES = text("""
    update nodes set templates = cast(:templates as jsonb) where id = :node_id and epoch = :epoch
""")

# A new epoch means a new launcher, so the environments of the old epoch are lost.
MARK_OTHER_EPOCHS_LOST = text("""
    update environments
       set lost_at = now(), end_reason = 'node_restarted', changed_xid = pg_current_xact_id()
     where node_id = :node_id
       and node_epoch <> :epoch
       and ended_at is null
       and lost_at is null
""")

POLL = text(f"""
    select ({ACTIVE_ON_NODE}) as held,
           (select coalesce(json_agg(id), '[]')::text
              from environments
             where node_id = :node_id
               and node_epoch = :epoch
               and ended_at is null
               and lost_at is null) as live,
           (select coalesce(json_object_agg(id, json_build_array(network_version, network)), '{{}}')::text
              from environments
             where node_id = :node_id
               and node_epoch = :epoch
               and ended_at is null
               and lost_at is null
               and network_version > 0) as networks,
           (select coalesce(json_agg(e), '[]')::text
              from (select id, case when delete_requested_at is null then 'idle' else 'deleted' end as reason
                      from environments
                     where node_id = :node_id
                       and node_epoch = :epoch
                       and ended_at is null
                       and lost_at is null
                       and (delete_requested_at is not null
                            or (last_used_at < now() - make_interval(secs => idle_ttl_s)
                                and not has_unsettled_actions(id)))) as e) as ending,
           (select coalesce(json_agg(id), '[]')::text
              from snapshots
             where node_id = :node_id
               and delete_requested_at is not null) as unwanted,
           ({IMAGE_REQUESTS}) as images
""")  # noqa: S608 - a constant of the library

LIST_SNAPSHOTS = text("select id from snapshots where node_id = :node_id")
DELETE_SNAPSHOTS = text("delete from snapshots where id = any(cast(:ids as uuid[]))")

RECORD_SNAPSHOT = text("""
    insert into snapshots (id, project_id, queue_id, trajectory, environment_id, node_id, template, memory_mib,
                           disk_mib, pids, members, bytes, network)
    select a.id, a.project_id, a.queue_id, a.trajectory, e.id, e.node_id, e.template, e.memory_mib, e.disk_mib, e.pids,
           :members, :bytes, e.network
      from actions as a
      join environments as e on e.id = a.environment_id
     where a.id = :id and a.node_epoch = :epoch and a.state = 'running'
""")
RECORD_RECLAIMABLE = text("""
    update node_beats set reclaimable_milli = :cpu_milli where node_id = :node_id and epoch = :epoch
""")
LIST_LIVE_ENVIRONMENTS = text("""
    select id, memory_mib, disk_mib
      from environments
     where node_id = :node_id
       and node_epoch = :epoch
       and ended_at is null
       and lost_at is null
""")

_SPEC_COLUMNS = """s.environment::text as environment, s.timeout_s, s.wall_timeout_s,
           s.cpu_sharing::text as cpu_sharing, s.payload::text as payload,
           case when s.elastic ->> 'resource' = 'cpu_milli' then (s.elastic ->> 'max')::int else 0
            end as widest_cpu_milli"""

# The transition to running, the environment's row at its first use, and the specification: one statement, one commit.
START = text(f"""
    {GRANTED_TO_NODE}, started as (
        update actions as a
           set state = 'running', started_at = now()
          from ours
         where a.id = ours.id
     returning a.id, a.grant_no, a.kind, a.project_id, a.queue_id, a.trajectory, a.environment_id,
               a.cancel_requested_at is not null as cancel
    ), made as (
        insert into environments (id, project_id, queue_id, trajectory, node_id, node_epoch, template, memory_mib,
                                  disk_mib, pids, idle_ttl_s, network)
        select started.environment_id, project_id, queue_id, trajectory, :node_id, :epoch,
               coalesce(s.environment ->> 'template', 'host'), (s.environment ->> 'memory_mib')::int,
               (s.environment ->> 'disk_mib')::int, (s.environment ->> 'pids')::int,
               (s.environment ->> 'idle_ttl_s')::int, s.environment -> 'network'
          from started
          join action_specs as s using (id)
         where started.environment_id is not null
           and coalesce((s.environment ->> 'id')::uuid = started.environment_id, true)
            on conflict do nothing
     returning id
    )
    select started.id, started.grant_no, started.kind, started.environment_id, started.cancel, {_SPEC_COLUMNS},
           started.environment_id is null
           or made.id is not null
           or (e.node_epoch = :epoch and e.ended_at is null and e.lost_at is null) as environment_live, e.end_reason,
           made.id is not null or coalesce(e.last_used_at = e.created_at, true) as may_make,
           coalesce(e.network, s.environment -> 'network')::text as network,
           coalesce(e.network_version, 0) as network_version
      from started
      join action_specs as s using (id)
      left join made on made.id = started.environment_id
      left join environments as e on e.id = started.environment_id
""")  # noqa: S608 - constants of this module

LOAD = text(f"""
    select a.id, a.grant_no, a.kind, a.environment_id, a.cancel_requested_at is not null as cancel, {_SPEC_COLUMNS},
           true as environment_live, e.end_reason, coalesce(e.last_used_at = e.created_at, true) as may_make,
           coalesce(e.network, s.environment -> 'network')::text as network,
           coalesce(e.network_version, 0) as network_version
      from actions as a
      join action_specs as s using (id)
      left join environments as e on e.id = a.environment_id
     where a.id = any(cast(:ids as uuid[]))
       and a.node_epoch = :epoch
       and a.state = 'running'
""")  # noqa: S608 - constants of this module

_MAY_RUN_AGAIN = "(a.environment_id is null or (a.idempotent and not r.environment_lost))"

# An infra_error goes back to the queue while retries are left. Inside a persistent environment this also requires that
# the client declared the action idempotent and that the environment still exists. The reason then stays with the
# attempt. The transition, the result and the environment's update are one statement and one commit.
SETTLE = text(f"""
    with report as materialized (
        select *
          from unnest(cast(:ids as uuid[]), cast(:grant_nos as int[]), cast(:outcomes as text[]),
                      cast(:reasons as text[]), cast(:run_us as bigint[]), cast(:counted_us as bigint[]),
                      cast(:environments_lost as boolean[]),
                      cast(:exit_codes as int[]), cast(:signals as int[]), cast(:stdouts as bytea[]),
                      cast(:stderrs as bytea[]), cast(:stdout_bytes as bigint[]), cast(:stderr_bytes as bigint[]),
                      cast(:files as text[]), cast(:missing as text[]), cast(:cpu_us as bigint[]),
                      cast(:peaks_kib as bigint[]), cast(:leftover_processes as int[]), cast(:messages as text[]),
                      cast(:enforcements as text[]), cast(:networks as text[]))
               as r (id, grant_no, outcome, reason, run_us, counted_us, environment_lost, exit_code, signal, stdout,
                     stderr, stdout_bytes, stderr_bytes, files, missing, cpu_us, peak_memory_kib, leftover_processes,
                     message, enforcement, network)
    ), {reported_edge(_MAY_RUN_AGAIN, counted_us="r.counted_us")}, result as (
        insert into action_results (id, grant_no, exit_code, signal, stdout, stderr, stdout_bytes, stderr_bytes, files,
                                    missing_files, cpu_us, peak_memory_kib, leftover_processes, message, enforcement,
                                    network)
        select id, grant_no, exit_code, signal, stdout, stderr, stdout_bytes, stderr_bytes, files::json,
               array(select json_array_elements_text(missing::json)), cpu_us, peak_memory_kib, leftover_processes,
               message, enforcement::jsonb, network::json
          from edge
          join report using (id, grant_no)
         where edge.state = 'settled'
    ), home as (
        select e.id, h.lost and e.ended_at is null and e.lost_at is null and e.node_epoch = :epoch as lost, h.memory
          from environments as e
          join (select edge.environment_id as id, bool_or(report.environment_lost) as lost,
                       bool_or(report.environment_lost and report.outcome = 'limit_exceeded') as memory
                  from edge
                  join report using (id, grant_no)
                 where report.run_us > 0 or report.environment_lost
                 group by edge.environment_id) as h using (id)
         order by e.id
           for no key update of e
    ), touched as (
        update environments as e
           set last_used_at = now(),
               lost_at = case when home.lost then now() else e.lost_at end,
               end_reason = case when not home.lost then e.end_reason
                                 when home.memory then '{ENVIRONMENT_OUT_OF_MEMORY}'
                                 else 'agent_lost' end,
               changed_xid = case when home.lost then pg_current_xact_id() else e.changed_xid end
          from home
         where e.id = home.id
    )
    {EDGE_ROWS}
""")  # noqa: S608 - constants of the library

MARK_ENVIRONMENTS_LOST = text("""
    update environments
       set lost_at = now(), end_reason = :reason, changed_xid = pg_current_xact_id()
     where id = any(cast(:ids as uuid[]))
       and node_epoch = :epoch
       and ended_at is null
       and lost_at is null
""")

END_ENVIRONMENTS = text("""
    update environments as e
       set ended_at = now(), end_reason = d.reason, changed_xid = pg_current_xact_id()
      from unnest(cast(:ids as uuid[]), cast(:reasons as text[])) as d (id, reason)
     where e.id = d.id
       and e.node_epoch = :epoch
       and e.ended_at is null
       and e.lost_at is null
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePollResult:
    """The result of a poll: this node's active rows, and the environments and snapshots to remove."""

    active_rows: Sequence[dict[str, Any]]
    live_environments: frozenset[UUID]
    """Environments that are live on this node according to their rows."""
    environments_to_end: Sequence[tuple[UUID, str]]
    snapshots_to_delete: Sequence[UUID]
    """Ids of the snapshots to delete."""
    image_requests: Sequence[Mapping[str, Any]]
    """Images to pull or to remove."""
    networks: Mapping[UUID, NetworkVersion]
    """Networks of live environments that were changed after their creation."""


async def mark_other_epochs_lost(tx: WriteTx, *, node_id: int, epoch: UUID) -> int:
    """Mark the environments of the node's earlier epochs as lost."""
    return await tx.execute(MARK_OTHER_EPOCHS_LOST, {"node_id": node_id, "epoch": epoch})


async def publish_templates(tx: WriteTx, templates: str, *, node_id: int, epoch: UUID) -> None:
    """Publish the node's templates. Does nothing if the node has registered under another epoch."""
    await tx.execute(PUBLISH_TEMPLATES, {"templates": templates, "node_id": node_id, "epoch": epoch})


async def poll(tx: ReadTx, *, node_id: int, epoch: UUID) -> NodePollResult:
    """Read the node's active rows, and the environments and snapshots to remove."""
    row = (await tx.fetch(POLL, {"node_id": node_id, "epoch": epoch}))[0]
    ending = [(UUID(entry["id"]), str(entry["reason"])) for entry in json.loads(row.ending)]
    live = frozenset(UUID(entry) for entry in json.loads(row.live))
    unwanted = [UUID(entry) for entry in json.loads(row.unwanted)]
    return NodePollResult(
        active_rows=json.loads(row.held),
        live_environments=live,
        environments_to_end=ending,
        snapshots_to_delete=unwanted,
        image_requests=json.loads(row.images),
        networks={UUID(id): NetworkVersion(*each) for id, each in json.loads(row.networks).items()},
    )


async def record_reclaimable(tx: WriteTx, cpu_milli: int, *, node_id: int, epoch: UUID) -> int:
    """Record the allocated milli-cores that attempts with shared cores do not use."""
    return await tx.execute(RECORD_RECLAIMABLE, {"cpu_milli": cpu_milli, "node_id": node_id, "epoch": epoch})


async def list_live_environments(tx: ReadTx, *, node_id: int, epoch: UUID) -> Sequence[Row]:
    """Return the live environments of this epoch."""
    return await tx.fetch(LIST_LIVE_ENVIRONMENTS, {"node_id": node_id, "epoch": epoch})


async def start(tx: WriteTx, fences: Sequence[Fence], *, node_id: int, epoch: UUID) -> Sequence[Row]:
    """Set granted fences to running and return their rows with specifications. A fence that is missing was lost."""
    return await tx.fetch(START, {**fence_columns(fences), "node_id": node_id, "epoch": epoch})


async def load(tx: ReadTx, ids: Sequence[UUID], *, epoch: UUID) -> Sequence[Row]:
    """Return the specifications of running rows that never reached the executor."""
    return await tx.fetch(LOAD, {"ids": sorted(ids), "epoch": epoch})


async def settle(tx: WriteTx, reports: Sequence[ExecutionReport], *, epoch: UUID) -> Sequence[Row]:
    """Record each outcome once. Return the rows that settled or were re-queued; a lost fence changes nothing."""
    return await tx.fetch(
        SETTLE,
        {
            "outcomes": [report.outcome for report in reports],
            "reasons": [report.reason for report in reports],
            "run_us": [report.run_us for report in reports],
            "counted_us": [report.counted_us for report in reports],
            "environments_lost": [report.environment_lost for report in reports],
            "epoch": epoch,
            **_result_columns(reports),
        },
    )


async def mark_environments_lost(tx: WriteTx, ids: Sequence[UUID], *, reason: str, epoch: UUID) -> int:
    """Mark environments of this epoch as lost. Return the number of changed rows."""
    return await tx.execute(MARK_ENVIRONMENTS_LOST, {"ids": sorted(ids), "reason": reason, "epoch": epoch})


async def end_environments(tx: WriteTx, ended: Iterable[tuple[UUID, str]], *, epoch: UUID) -> int:
    """Record the end of environments with its reason. Return the number of changed rows."""
    ordered = sorted(ended)
    return await tx.execute(
        END_ENVIRONMENTS,
        {"ids": [entry[0] for entry in ordered], "reasons": [entry[1] for entry in ordered], "epoch": epoch},
    )


async def list_snapshots(tx: ReadTx, *, node_id: int) -> Sequence[UUID]:
    """Return the ids of the snapshots on this node."""
    return [row.id for row in await tx.fetch(LIST_SNAPSHOTS, {"node_id": node_id})]


async def record_snapshot(tx: WriteTx, action: UUID, *, epoch: UUID, size: Mapping[str, int]) -> int:
    """Record a snapshot. Return 0 if the action that took it no longer runs here."""
    return await tx.execute(RECORD_SNAPSHOT, {"id": action, "epoch": epoch, **size})


async def delete_snapshots(tx: WriteTx, ids: Sequence[UUID]) -> int:
    """Delete the rows of snapshots. Return the number of deleted rows."""
    return await tx.execute(DELETE_SNAPSHOTS, {"ids": list(ids)})


def _result_columns(reports: Sequence[ExecutionReport]) -> dict[str, Any]:
    return {
        **fence_columns([report.fence for report in reports]),
        "exit_codes": [report.exit_code for report in reports],
        "signals": [report.signal for report in reports],
        "stdouts": [report.stdout.data for report in reports],
        "stderrs": [report.stderr.data for report in reports],
        "stdout_bytes": [report.stdout.total_bytes for report in reports],
        "stderr_bytes": [report.stderr.total_bytes for report in reports],
        "files": [_files_json(report) for report in reports],
        "missing": [json.dumps(report.missing_files) for report in reports],
        "cpu_us": [report.cpu_us for report in reports],
        "peaks_kib": [report.peak_memory_kib for report in reports],
        "leftover_processes": [report.leftover_processes for report in reports],
        "messages": [storable(report.message) for report in reports],
        "enforcements": [json.dumps(dict(report.enforcement)) for report in reports],
        "networks": [storable_json(json.dumps(report.network)) if report.network else None for report in reports],
    }


def _files_json(report: ExecutionReport) -> str:
    return json.dumps({path: b64encode(content).decode() for path, content in report.files.items()})
