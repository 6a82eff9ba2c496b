"""Test the guarantees that Postgres enforces: transitions, rights, partitions and upgrades."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import product
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from arl_core.domain.states import MANAGER_ROLES, TRANSITIONS, ActionOutcome, ActionState, ServiceRole
from arl_store.guards import role_name
from arl_store.logins import role_url
from arl_store.migrate import upgrade
from arl_store.tables import metadata
from arl_store.values import uuid7
from support.builders import EPOCH
from support.postgres import PASSWORDS, CloneDatabase, Databases
from support.rows import Rows, rows_in

Change = tuple[ActionState, ActionState, ActionOutcome | None, ServiceRole]

EVERY_CHANGE: list[Change] = list(product(ActionState, ActionState, (None, *ActionOutcome), ServiceRole))
ALLOWED = {
    (edge.old, edge.new, outcome, role)
    for edge in TRANSITIONS
    for outcome in edge.outcomes or (None,)
    for role in edge.writers
}
OWN_COLUMNS = {
    ServiceRole.GATEWAY: "run_us = 1",
    ServiceRole.ADMISSION: "cancel_requested_at = now()",
    ServiceRole.SCHEDULER: "amounts_seq = amounts_seq + 1",
    ServiceRole.CPU: "run_us = 1",
    ServiceRole.GPU: "run_us = 1",
    ServiceRole.API: "run_us = 1",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rows(databases: Databases) -> AsyncIterator[Rows]:
    """Provide one database for all tests that do not change its schema."""
    owner_url = await databases.clone()
    async with rows_in(owner_url) as rows:
        yield rows
    await databases.drop(owner_url)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def connections(rows: Rows) -> AsyncIterator[dict[ServiceRole, asyncpg.Connection]]:
    made = {role: await asyncpg.connect(role_url(rows.owner_url, role, PASSWORDS[role])) for role in ServiceRole}
    yield made
    for connection in made.values():
        await connection.close()


def _update(change: Change) -> str:
    """Return the statement that makes this change, limited to the columns of the role."""
    old, new, outcome, role = change
    own = OWN_COLUMNS[role]
    if role is ServiceRole.ADMISSION and old is new and outcome is None:
        return f"update actions set {own} where id = $1"
    if role is ServiceRole.SCHEDULER and (old, new) == (ActionState.QUEUED, ActionState.GRANTED):
        own += ", grant_no = grant_no + 1, node_id = 1, amounts = '{}'"
    settled = "null" if outcome is None else f"'{outcome}'"
    return f"update actions set state = '{new}', outcome = {settled}, {own} where id = $1"


async def _is_allowed(connection: asyncpg.Connection, change: Change, id: UUID) -> bool:
    """Try the change and roll it back. Rights, the trigger or the outcome constraint may reject it."""
    trial = connection.transaction()
    await trial.start()
    try:
        return await connection.execute(_update(change), id) == "UPDATE 1"
    except asyncpg.InsufficientPrivilegeError:
        return False
    except asyncpg.CheckViolationError as error:
        if error.constraint_name not in (None, "outcome_when_settled"):
            raise
        return False
    finally:
        await trial.rollback()


async def _register(connection: asyncpg.Connection, kind: str, name: str | None = None) -> int:
    """Register a node under the role of the connection and return its id."""
    statement = (
        "insert into nodes (name, kind, url, epoch, driver, capacity) values ($1, $2, 'http://n', $3, 'd', '{}')"
        " returning id"
    )
    return int(await connection.fetchval(statement, name or f"own-{kind}", kind, EPOCH))


class TestTransitions:
    async def test_each_role_makes_exactly_its_allowed_transitions(
        self, rows: Rows, connections: dict[ServiceRole, asyncpg.Connection]
    ) -> None:
        nodes = {role: await _register(connections[role], role) for role in sorted(MANAGER_ROLES)}
        ids = {
            (state, role): await rows.action(
                state=state,
                outcome="ok" if state == "settled" else None,
                **({"node_id": nodes[role], "amounts": {}} if role in nodes else {}),
            )
            for state, role in product(ActionState, ServiceRole)
        }
        possible = {
            change
            for change in EVERY_CHANGE
            if await _is_allowed(connections[change[3]], change, ids[change[0], change[3]])
        }
        assert possible == ALLOWED

    @pytest.mark.parametrize("step", [-1, 1, 2])
    async def test_grant_no_does_not_change_without_a_grant_transition(
        self, step: int, rows: Rows, connections: dict[ServiceRole, asyncpg.Connection]
    ) -> None:
        id = await rows.action(state="running")
        with pytest.raises(asyncpg.CheckViolationError, match="not for changing"):
            await connections[ServiceRole.SCHEDULER].execute(
                "update actions set grant_no = grant_no + $2 where id = $1", id, step
            )

    @pytest.mark.parametrize("step", [0, 2])
    async def test_grant_increments_grant_no_by_exactly_one(
        self, step: int, rows: Rows, connections: dict[ServiceRole, asyncpg.Connection]
    ) -> None:
        id = await rows.action()
        with pytest.raises(asyncpg.CheckViolationError, match="not for changing"):
            await connections[ServiceRole.SCHEDULER].execute(
                "update actions set state = 'granted', grant_no = $2, node_id = 1, amounts = '{}' where id = $1",
                *(id, step),
            )

    async def test_owner_cannot_change_a_settled_row(self, rows: Rows) -> None:
        id = await rows.action(state="settled", outcome="ok")
        for change in ("outcome = 'user_error'", "run_us = 5", "state = 'queued', outcome = null", "reason = 'x'"):
            with pytest.raises(asyncpg.CheckViolationError, match="is no edge"):
                await rows.execute(f"update actions set {change} where id = $1", id)


class TestRights:
    @pytest.mark.parametrize(
        ("role", "statement"),
        [
            (ServiceRole.GATEWAY, "insert into actions (id, project_id, queue_id, kind) values ($1, 1, 1, 'exec')"),
            (ServiceRole.GATEWAY, "delete from actions where id = $1"),
            (ServiceRole.GATEWAY, "update environments set delete_requested_at = now() where id = $1"),
            (ServiceRole.ADMISSION, "insert into actions (id, project_id, queue_id, kind, state, outcome)"
                             " values ($1, 1, 1, 'exec', 'settled', 'ok')"),
            (ServiceRole.ADMISSION, "insert into actions (id, project_id, queue_id, grant_no) values ($1, 1, 1, 7)"),
            (ServiceRole.ADMISSION, "insert into action_results (id, grant_no) values ($1, 1)"),
            (ServiceRole.ADMISSION, "update environments set lost_at = now() where id = $1"),
            (ServiceRole.SCHEDULER, "insert into actions (id, project_id, queue_id, kind) values ($1, 1, 1, 'exec')"),
            (ServiceRole.SCHEDULER, "insert into action_results (id, grant_no) values ($1, 1)"),
            (ServiceRole.SCHEDULER, "update actions set retries = 9 where id = $1"),
            (ServiceRole.SCHEDULER, "update node_beats set last_beat = now() where $1::uuid is not null"),
            (ServiceRole.CPU, "update actions set grant_no = grant_no + 1 where id = $1"),
            (ServiceRole.CPU, "update leader_term set term = term + 1 where $1::uuid is not null"),
            (ServiceRole.CPU, "update action_specs set timeout_s = 1 where id = $1"),
            (ServiceRole.CPU, "delete from action_results where id = $1"),
            (ServiceRole.GPU, "update actions set amounts = '{}' where id = $1"),
            (ServiceRole.GPU, "update environments set lost_at = now() where id = $1"),
            (ServiceRole.API, "update actions set amounts = '{}' where id = $1"),
            (ServiceRole.API, "update environments set lost_at = now() where id = $1"),
            (ServiceRole.CPU, "insert into attempts (id, grant_no, granted_at) values ($1, 1, now())"),
            (ServiceRole.SCHEDULER, "insert into attempts (id, grant_no, granted_at) values ($1, 1, now())"),
            (ServiceRole.SCHEDULER, "delete from actions where id = $1"),
            (ServiceRole.SCHEDULER, "select drop_empty_partitions(now()) where $1::uuid is not null"),
        ],
    )  # fmt: skip
    async def test_role_cannot_write_what_another_role_owns(
        self, role: ServiceRole, statement: str, connections: dict[ServiceRole, asyncpg.Connection]
    ) -> None:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connections[role].execute(statement, uuid7())

    async def test_admission_role_can_insert_a_queued_action(
        self, rows: Rows, connections: dict[ServiceRole, asyncpg.Connection]
    ) -> None:
        id = uuid7()
        sql = "insert into actions (id, project_id, queue_id, kind) values ($1, 1, 1, 'exec')"
        await connections[ServiceRole.ADMISSION].execute(sql, id)
        assert await rows.state(id) == ("queued", None, None)

    async def test_only_settled_actions_can_be_deleted(
        self, rows: Rows, connections: dict[ServiceRole, asyncpg.Connection]
    ) -> None:
        states = {"queued": None, "granted": None, "running": None, "settled": "ok"}
        for state, outcome in states.items():
            id = await rows.action(state=state, outcome=outcome)
            removal = connections[ServiceRole.ADMISSION].execute("delete from actions where id = $1", id)
            if state == "settled":
                assert await removal == "DELETE 1"
                continue
            with pytest.raises(asyncpg.CheckViolationError, match="only a settled one is removed"):
                await removal


class TestPartitions:
    async def test_row_is_stored_in_the_partition_of_its_id(self, rows: Rows) -> None:
        before = datetime.now(UTC)
        id = await rows.action()
        after = datetime.now(UTC)
        for table in ("actions", "action_specs"):
            child = await rows.value(f"select tableoid::regclass::text from {table} where id = $1", id)
            assert child in {f"{table}_{day:%Y%m%d}" for day in (before, after)}

    async def test_repeated_partition_creation_creates_none(self, database: str) -> None:
        async with rows_in(database) as rows:
            sql = "select ensure_partitions((now() at time zone 'utc')::date + 50, 3)"
            assert [await rows.value(sql), await rows.value(sql)] == [9, 0]

    async def test_scheduler_role_can_create_partitions(
        self, connections: dict[ServiceRole, asyncpg.Connection]
    ) -> None:
        sql = "select ensure_partitions((now() at time zone 'utc')::date + 20, 1)"
        assert await connections[ServiceRole.SCHEDULER].fetchval(sql) == 3

    async def test_rows_in_the_default_partition_do_not_block_partition_creation(self, database: str) -> None:
        """If a day's partition is created too late, rows in the default partition do not block it."""
        async with rows_in(database) as rows:
            hundred_days_on = UUID(int=uuid7().int + ((100 * 86_400_000) << 80))
            await rows.action(id=hundred_days_on)
            await rows.value("select ensure_partitions((now() at time zone 'utc')::date + 99, 4)")
            assert (await rows.of(hundred_days_on))["state"] == "queued"


class TestUpgrade:
    async def test_second_upgrade_changes_nothing(self, database: str) -> None:
        async with rows_in(database) as rows:
            id = await rows.action()
            await upgrade(database, PASSWORDS)
            assert await rows.state(id) == ("queued", None, None)

    async def test_concurrent_upgrades_create_one_schema(self, databases: Databases) -> None:
        admin = await asyncpg.connect(databases.server.owner_url("postgres"))
        await admin.execute("create database test_upgrades")
        owner_url = databases.server.owner_url("test_upgrades")
        try:
            await asyncio.gather(*(upgrade(owner_url, PASSWORDS) for _ in range(4)))
            async with rows_in(owner_url) as rows:
                assert await rows.value("select count(*) from alembic_version") == 1
                assert (await rows.of(await rows.action()))["state"] == "queued"
        finally:
            await databases.drop(owner_url)
            await admin.close()

    async def test_upgrade_without_role_rights_checks_transitions_but_not_writers(self, databases: Databases) -> None:
        admin = await asyncpg.connect(databases.server.owner_url("postgres"))
        await admin.execute("create role plain login password 'plain'")
        await admin.execute("create database test_one_role owner plain")
        owner_url = databases.server.owner_url("test_one_role")
        plain_url = owner_url.replace(owner_url.split("//")[1].partition("@")[0], "plain:plain", 1)
        try:
            await upgrade(plain_url, PASSWORDS)
            async with rows_in(plain_url) as rows:
                id = await rows.action(state="granted")
                await rows.execute("update actions set state = 'running' where id = $1", id)
                with pytest.raises(asyncpg.CheckViolationError, match="is no edge"):
                    await rows.execute("update actions set state = 'granted' where id = $1", id)
        finally:
            await databases.drop(owner_url)
            await admin.execute("drop role plain")
            await admin.close()

    async def test_roles_of_one_database_have_no_rights_in_another(self, clone_database: CloneDatabase) -> None:
        first, second = await clone_database(), await clone_database()
        name = urlsplit(first).path.lstrip("/")
        url = urlsplit(role_url(first, "cpu", PASSWORDS["cpu"]))._replace(path=urlsplit(second).path)
        connection = await asyncpg.connect(urlunsplit(url))
        try:
            assert await connection.fetchval("select current_user") == role_name(name, ServiceRole.CPU)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetchval("select count(*) from actions")
        finally:
            await connection.close()


class TestTables:
    async def test_every_column_of_the_metadata_exists(self, rows: Rows) -> None:
        sql = "select column_name from information_schema.columns where table_name = $1 and table_schema = 'public'"
        for table in metadata.sorted_tables:
            found = {record["column_name"] for record in await rows.pool.fetch(sql, table.name)}
            assert {column.name for column in table.columns} <= found, table.name

    async def test_typical_settled_action_is_smaller_than_300_bytes(self, rows: Rows) -> None:
        now = datetime.now(UTC)
        edges: dict[str, Any] = dict.fromkeys(("granted_at", "started_at", "settled_at", "deadline_at"), now)
        id = await rows.action(
            state="settled", outcome="ok", trajectory="s12-p3-r5", environment_id=uuid7(), run_us=1_234_567, **edges
        )
        assert json.loads((await rows.of(id))["amounts"]).keys() == {"cpu_milli", "memory_mib", "disk_mib"}
        assert await rows.value("select pg_column_size(a.*) from actions as a where id = $1", id) < 300
