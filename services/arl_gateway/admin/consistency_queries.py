"""The statement of the consistency check."""

from sqlalchemy import text

from arl_store.tx import ReadTx, Row

__all__ = ["check_consistency"]

# Allocation rule: an attempt occupies its cores. It also occupies memory and disk unless its environment has a row. A
# live environment occupies memory and disk. A single statement reads a single snapshot.
CONSISTENCY_CHECK = text("""
    with attempts as (
        select a.id, a.state, a.node_id, a.node_epoch, a.environment_id, a.amounts, e.id is not null as has_home,
               e.ended_at is not null or e.lost_at is not null as home_gone
          from actions as a
          left join environments as e on e.id = a.environment_id
         where a.state in ('granted', 'running')
    ), homes as (
        select id, node_id, node_epoch, memory_mib, disk_mib
          from environments
         where ended_at is null and lost_at is null
    ), amounts as (
        select node_id, key as resource, value::bigint as amount
          from attempts, jsonb_each_text(amounts)
         where key not in ('memory_mib', 'disk_mib') or not has_home
     union all
        select node_id, 'memory_mib', memory_mib from homes
     union all
        select node_id, 'disk_mib', disk_mib from homes
    ), ledger as (
        select n.name as node, c.key as resource, c.value::bigint as capacity,
               coalesce((select sum(amount) from amounts where node_id = n.id and resource = c.key), 0)::bigint
                   as allocated
          from nodes as n, jsonb_each_text(n.capacity) as c
         order by n.name, c.key
    ), findings as (
        select 'settled_without_outcome' as "check", id::text as subject, 'settled without an outcome' as detail
          from actions where state = 'settled' and outcome is null
     union all
        select 'settled_without_result', a.id::text, 'outcome ' || a.outcome || ' without a result'
          from actions as a
         where a.state = 'settled'
           and a.outcome in ('ok', 'user_error', 'user_timeout', 'limit_exceeded')
           and a.reason is distinct from 'environment_out_of_memory'
           and not exists (select from action_results as r where r.id = a.id)
     union all
        select 'result_of_another_grant', a.id::text,
               'grant_no is ' || a.grant_no || ', but the result is of grant ' || r.grant_no
          from actions as a join action_results as r using (id)
         where r.grant_no <> a.grant_no
     union all
        select 'result_before_the_end', a.id::text, 'has a result, but the action is ' || a.state
          from actions as a join action_results as r using (id)
         where a.state <> 'settled'
     union all
        select 'action_without_spec', a.id::text, 'no row in action_specs'
          from actions as a
         where not exists (select from action_specs as s where s.id = a.id)
     union all
        select 'attempt_of_another_epoch', t.id::text, t.state || ' on an earlier registration of node ' || n.name
          from attempts as t join nodes as n on n.id = t.node_id
         where t.node_epoch is distinct from n.epoch
     union all
        select 'attempt_without_node', t.id::text, t.state || ' on node ' || t.node_id || ', which does not exist'
          from attempts as t
         where not exists (select from nodes as n where n.id = t.node_id)
     union all
        select 'attempt_in_a_gone_environment', t.id::text, t.state || ' in ended environment ' || t.environment_id
          from attempts as t
         where t.home_gone
     union all
        select 'shared_environment', environment_id::text, count(*) || ' concurrent attempts'
          from attempts
         where environment_id is not null
         group by environment_id
        having count(*) > 1
     union all
        select 'environment_of_another_epoch', h.id::text, 'live on an earlier registration of node ' || n.name
          from homes as h join nodes as n on n.id = h.node_id
         where h.node_epoch <> n.epoch
     union all
        select 'overbooked', node || ' ' || resource, 'allocated ' || allocated || ' of ' || capacity
          from ledger
         where allocated > capacity
    )
    select now() as at,
           (select coalesce(json_object_agg(state, total), '{}')::text
              from (select state, count(*) as total from actions group by state) as s) as actions,
           (select coalesce(json_agg(u), '[]')::text
              from (select name as node,
                           (select count(*) from attempts where node_id = nodes.id) as attempts,
                           (select count(*) from homes where node_id = nodes.id) as environments
                      from nodes
                     order by name) as u) as nodes,
           (select coalesce(json_agg(ledger), '[]')::text from ledger) as allocations,
           (select coalesce(json_agg(f), '[]')::text
              from (select * from findings order by "check", subject limit 1000) as f) as findings
""")


async def check_consistency(tx: ReadTx) -> Row:
    """Check every row once. With millions of rows this takes seconds."""
    return (await tx.fetch(CONSISTENCY_CHECK))[0]
