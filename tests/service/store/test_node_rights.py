"""Test that a node's database role reads and writes only what belongs to its node, whatever statement it sends."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from arl_core.domain.states import ServiceRole
from arl_store.guards import role_name
from arl_store.logins import NodeLogin, node_role_url, role_url
from arl_store.migrate import upgrade
from arl_store.values import uuid7
from support.builders import EPOCH
from support.postgres import PASSWORDS, Databases
from support.rows import Rows, rows_in

LOGINS = {name: NodeLogin("gpu" if name == "g" else "cpu", name, f"password-of-{name}") for name in ("a", "b", "g")}
SERVICES = {name: password for name, password in PASSWORDS.items() if name not in ("cpu", "gpu", "api")}
REGISTER = """
    insert into nodes (name, kind, url, epoch, driver, capacity, topology, enforced, templates)
    values ($1, $2, $3, $4, 'd', '{}', '{}', '[]', '[]')
        on conflict (name) do update set url = excluded.url, epoch = excluded.epoch
 returning id
"""

INSERT_SNAPSHOT = """
    insert into snapshots (id, project_id, queue_id, trajectory, environment_id, node_id, template, memory_mib,
                           disk_mib, pids, members, bytes)
    values (gen_random_uuid(), 1, 1, 't', gen_random_uuid(), $1, 'host', 1, 1, 1, 1, 1)
"""


@dataclass(frozen=True)
class TwoNodes:
    """Two registered CPU nodes with an action each; `stolen` is a connection with the credentials of `a`."""

    rows: Rows
    stolen: asyncpg.Connection
    own_node: int
    other_node: int
    own_action: UUID
    other_action: UUID


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[TwoNodes]:
    owner_url = await databases.clone()
    await upgrade(owner_url, SERVICES, nodes=list(LOGINS.values()))
    connections = {name: await asyncpg.connect(node_role_url(owner_url, login)) for name, login in LOGINS.items()}
    async with rows_in(owner_url) as rows:
        ids = {name: await connections[name].fetchval(REGISTER, name, "cpu", f"http://{name}", EPOCH) for name in "ab"}
        for name in "ab":
            await connections[name].execute("insert into node_beats (node_id, epoch) values ($1, $2)", ids[name], EPOCH)
        actions = {name: await rows.action(state="running", node_id=ids[name]) for name in "ab"}
        await rows.action(trajectory="waits")
        await rows.environment("other", ids["b"])
        await rows.execute(INSERT_SNAPSHOT, ids["b"])
        yield TwoNodes(rows, connections["a"], ids["a"], ids["b"], actions["a"], actions["b"])
    for connection in connections.values():
        await connection.close()
    await databases.drop(owner_url)


class TestRegistration:
    async def test_node_cannot_take_over_the_row_of_another_node(self, system: TwoNodes) -> None:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await system.stolen.fetchval(REGISTER, "b", "cpu", "http://attacker", uuid4())
        changed = await system.stolen.execute("update nodes set url = 'http://attacker' where name = 'b'")
        assert changed == "UPDATE 0"
        assert await system.rows.value("select url from nodes where name = 'b'") == "http://b"

    @pytest.mark.parametrize(("name", "kind"), [("c", "cpu"), ("a2", "gpu"), ("g", "gpu")])
    async def test_node_cannot_register_another_name_or_kind(self, system: TwoNodes, name: str, kind: str) -> None:
        for prelude in ("reset role", f"set role {await _kind_role(system)}"):
            await system.stolen.execute(prelude)
            try:
                with pytest.raises(asyncpg.InsufficientPrivilegeError, match="belongs to the cpu node a"):
                    await system.stolen.fetchval(REGISTER, name, kind, "http://attacker", uuid4())
            finally:
                await system.stolen.execute("reset role")

    async def test_node_registers_itself_again(self, system: TwoNodes) -> None:
        assert await system.stolen.fetchval(REGISTER, "a", "cpu", "http://a", EPOCH) == system.own_node

    @pytest.mark.parametrize("column", ["db_role = 'x'", "name = 'b2'", "kind = 'gpu'", "cordoned_at = null", "id = 9"])
    async def test_node_cannot_change_its_identity_or_its_cordon(self, system: TwoNodes, column: str) -> None:
        with pytest.raises(asyncpg.PostgresError):
            await system.stolen.execute(f"update nodes set {column} where id = $1", system.own_node)

    async def test_node_cannot_beat_for_another_node(self, system: TwoNodes) -> None:
        beat = "update node_beats set last_beat = now(), epoch = $2 where node_id = $1"
        assert await system.stolen.execute(beat, system.own_node, EPOCH) == "UPDATE 1"
        assert await system.stolen.execute(beat, system.other_node, uuid4()) == "UPDATE 0"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await system.stolen.execute("update node_beats set node_id = $1", system.other_node)

    async def test_role_of_a_kind_has_no_login(self, system: TwoNodes) -> None:
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await asyncpg.connect(role_url(system.rows.owner_url, "cpu", PASSWORDS["cpu"]))


class TestReads:
    @pytest.mark.parametrize("table", ["actions", "action_specs", "environments", "snapshots", "nodes", "node_beats"])
    async def test_node_reads_only_its_own_rows(self, system: TwoNodes, table: str) -> None:
        own = {"actions": 1, "action_specs": 1, "nodes": 1, "node_beats": 1}
        for prelude in ("reset role", f"set role {await _kind_role(system)}"):
            await system.stolen.execute(prelude)
            assert await system.stolen.fetchval(f"select count(*) from {table}") == own.get(table, 0)
        await system.stolen.execute("reset role")

    @pytest.mark.parametrize(
        "table",
        ["action_results", "api_keys", "audit_log", "submissions", "projects", "queues", "attempts", "installation",
         "services", "class_estimates", "leader_term", "leader_lease", "actions_default", "action_specs_default",
         "action_results_default", "alembic_version"],
    )  # fmt: skip
    async def test_node_cannot_read_tables_that_it_does_not_need(self, system: TwoNodes, table: str) -> None:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await system.stolen.fetch(f"select * from {table}")

    async def test_node_reads_the_names_of_its_own_tasks_only(self, system: TwoNodes) -> None:
        """A node proves with an action that was granted to it that it may read the name of the task."""
        names = "select id, project, task from names_of_own_tasks($1)"
        queue = await system.rows.queue_of("task-of-b")
        other = await system.rows.action(queue_id=queue, state="running", node_id=system.other_node)
        queued = await system.rows.action(queue_id=queue)
        own = (await system.rows.of(system.own_action))["queue_id"]
        try:
            for prelude in ("reset role", f"set role {await _kind_role(system)}"):
                await system.stolen.execute(prelude)
                found = await system.stolen.fetch(names, [system.own_action, other, queued, uuid4()])
                assert [row["id"] for row in found] == [own]
                assert await system.stolen.fetch(names, [other, queued]) == []
        finally:
            await system.stolen.execute("reset role")
            await system.rows.unguarded("delete from actions where id = any($1)", [other, queued])

    async def test_node_reads_the_name_of_a_task_whose_attempt_was_granted_again_elsewhere(
        self, system: TwoNodes
    ) -> None:
        queue = await system.rows.queue_of("task-of-both")
        moved = await system.rows.action(queue_id=queue, state="running", node_id=system.own_node, grant_no=1)
        try:
            await system.rows.unguarded(
                "insert into attempts (id, grant_no, node_id, granted_at) values ($1, 1, $2, now())",
                moved,
                system.own_node,
            )
            await system.rows.unguarded("update actions set node_id = $2 where id = $1", moved, system.other_node)
            found = await system.stolen.fetch("select task from names_of_own_tasks($1)", [moved])
            assert [row["task"] for row in found] == ["task-of-both"]
        finally:
            await system.rows.unguarded("delete from attempts where id = $1", moved)
            await system.rows.unguarded("delete from actions where id = $1", moved)

    async def test_names_of_own_tasks_are_found_without_a_scan_of_the_settled_actions(self, system: TwoNodes) -> None:
        """The rows that the statement reads are counted, so the load of the machine does not matter."""
        marker = await system.rows.queue_of("many")
        await system.rows.unguarded(
            "insert into actions (id, project_id, queue_id, kind, state, outcome, settled_at)"
            " select gen_random_uuid(), 1, $1, 'exec', 'settled', 'ok', now() from generate_series(1, 5000)",
            marker,
        )
        connection = await asyncpg.connect(system.rows.owner_url)
        reads = "select coalesce(sum(seq_tup_read), 0) from pg_stat_xact_user_tables where relname like 'actions%'"
        try:
            async with connection.transaction():
                before = await connection.fetchval(reads)
                await connection.fetch("select * from names_of_own_tasks($1)", [system.own_action])
                assert await connection.fetchval(reads) - before < 5000
        finally:
            await connection.close()
            await system.rows.unguarded("delete from actions where queue_id = $1", marker)

    async def test_function_with_side_effects_in_a_filter_sees_only_own_rows(self, system: TwoNodes) -> None:
        """A filter that reports its input must not run before the policy."""
        await system.stolen.execute(
            "create function pg_temp.seen(id uuid) returns boolean language plpgsql cost 0.0001 as"
            " $$ begin raise notice 'saw %', id; return true; end $$"
        )
        heard: list[str] = []
        system.stolen.add_log_listener(lambda _, message: heard.append(message.message))
        await system.stolen.fetch("select id from action_specs where pg_temp.seen(id)")
        assert heard == [f"saw {system.own_action}"]

    @pytest.mark.parametrize("service", [ServiceRole.ADMISSION, ServiceRole.SCHEDULER])
    async def test_only_the_gateway_reads_keys_and_the_audit_log(self, system: TwoNodes, service: ServiceRole) -> None:
        connection = await asyncpg.connect(role_url(system.rows.owner_url, service, PASSWORDS[service]))
        try:
            for table in ("api_keys", "audit_log", "node_roles", "installation"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.fetch(f"select * from {table}")
        finally:
            await connection.close()


class TestWrites:
    async def test_node_cannot_settle_actions_of_another_node(self, system: TwoNodes) -> None:
        settle = "update actions set state = 'settled', outcome = 'ok', settled_at = now() where id = $1"
        assert await system.stolen.execute(settle, system.other_action) == "UPDATE 0"
        assert await system.rows.state(system.other_action) == ("running", None, None)

    async def test_node_cannot_write_results_of_another_node(self, system: TwoNodes) -> None:
        insert = "insert into action_results (id, grant_no, stdout) values ($1, 1, 'forged')"
        for id in (system.other_action, uuid7()):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await system.stolen.execute(insert, id)

    @pytest.mark.parametrize("change", ["node_id = 2", "project_id = 2", "grant_no = 2", "environment_id = null"])
    async def test_node_cannot_reassign_its_actions(self, system: TwoNodes, change: str) -> None:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await system.stolen.execute(f"update actions set {change} where id = $1", system.own_action)

    async def test_node_cannot_change_environments_or_snapshots_of_another(self, system: TwoNodes) -> None:
        id = await system.rows.environment("of-b", system.other_node)
        assert await system.stolen.execute("update environments set lost_at = now() where id = $1", id) == "UPDATE 0"
        assert await system.stolen.execute("delete from snapshots") == "DELETE 0"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await system.stolen.execute(
                "insert into environments (id, project_id, queue_id, trajectory, node_id, node_epoch, template,"
                " memory_mib, disk_mib, pids, idle_ttl_s) values ($1, 1, 1, 'x', $2, $3, 'host', 1, 1, 1, 1)",
                *(uuid4(), system.other_node, EPOCH),
            )


async def test_upgrade_assigns_existing_nodes_to_their_new_roles(databases: Databases) -> None:
    owner_url = await databases.clone()
    try:
        async with rows_in(owner_url) as rows:
            await rows.node("a")
            assert await rows.value("select db_role from nodes") == role_name(_database(owner_url), ServiceRole.CPU)
            await upgrade(owner_url, SERVICES, nodes=[LOGINS["a"]])
            await upgrade(owner_url, SERVICES, nodes=[LOGINS["a"]])
            assert await rows.value("select db_role from nodes") == LOGINS["a"].role(_database(owner_url))
    finally:
        await databases.drop(owner_url)


async def _kind_role(system: TwoNodes) -> str:
    return role_name(_database(system.rows.owner_url), ServiceRole.CPU)


def _database(owner_url: str) -> str:
    return owner_url.rpartition("/test_")[2].partition("?")[0].join(("test_", ""))
