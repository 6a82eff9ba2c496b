"""Test the life of a joined node's credentials in Postgres: token, exchange, drain and removal."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from pydantic import SecretStr

from arl_admission.node_queries import change_node, remove_node
from arl_gateway.nodes.join import NodeJoin
from arl_kit.service_tokens import TokenIssuer, TokenVerifier, joined_caller, joined_service_token, node_audience
from arl_local.credentials import NodeIdentity, joined_node_secrets
from arl_local.join.join_token import JoinToken
from arl_local.state_dir import StateDir
from arl_scheduler.queries.joined_node_queries import JoinedNodes
from arl_store.join_repository import NodeNameInUse, StoredToken, create_token
from arl_store.logins import NodeLogin, node_role_url
from arl_wire.errors import Forbidden, Unauthenticated
from arl_wire.internal.admission import InternalChangeNodeRequest
from support.builders import EPOCH
from support.conditions import eventually
from support.rows import Rows, rows_in, store_of

REGISTER = """
    insert into nodes (name, kind, url, epoch, driver, capacity, topology, enforced, templates)
    values ($1, 'cpu', 'http://n', $2, 'd', '{}', '{}', '[]', '[]')
 returning id
"""
MASTER = "m" * 32


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def join(rows: Rows) -> AsyncIterator[NodeJoin]:
    async with store_of(rows.owner_url, "gateway") as store:
        yield NodeJoin(store)


def a_login(name: str = "n", credential_id: str = "c1") -> NodeLogin:
    return NodeLogin("cpu", name, "password", credential_id, "big")


async def created(rows: Rows, login: NodeLogin | None = None, *, ttl_s: float = 60) -> JoinToken:
    token = JoinToken.generate()
    stored = StoredToken(token.id, token.proof_hash, token.encrypt({"name": "n"}), ttl_s)
    await create_token(rows.owner_url, login or a_login(), stored)
    return token


async def has_ended(connection: asyncpg.Connection) -> bool:
    try:
        await connection.fetchval("select count(*) from actions")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
        return True
    return False


class TestExchange:
    async def test_token_gives_the_credentials_once(self, rows: Rows, join: NodeJoin) -> None:
        token = await created(rows)
        answer = await join.exchange(token.authorization, claim="1", used_from="10.0.0.7")
        assert (answer.node_name, token.decrypt(answer.credentials.encode())) == ("n", {"name": "n"})
        with pytest.raises(Forbidden, match=r"node 'n' was already used by 10\.0\.0\.7 at .*create another"):
            await join.exchange(token.authorization, claim="2", used_from="10.0.0.8")

    async def test_node_whose_response_was_lost_gets_the_same_credentials(self, rows: Rows, join: NodeJoin) -> None:
        token = await created(rows)
        answers = [await join.exchange(token.authorization, claim="1", used_from="a") for _ in range(2)]
        assert answers[0] == answers[1]

    async def test_expired_token_is_refused(self, rows: Rows, join: NodeJoin) -> None:
        token = await created(rows)
        await rows.execute("update join_tokens set expires_at = now() - interval '1 s'")
        with pytest.raises(Forbidden, match="expired at"):
            await join.exchange(token.authorization, claim="1", used_from="a")

    async def test_token_of_another_system_is_refused(self, rows: Rows, join: NodeJoin) -> None:
        token = await created(rows)
        for foreign in (JoinToken.generate(), JoinToken(token.id, JoinToken.generate().secret)):
            with pytest.raises(Forbidden, match="does not know the join token"):
                await join.exchange(foreign.authorization, claim="1", used_from="a")
        assert await rows.value("select used_at from join_tokens") is None

    @pytest.mark.parametrize("authorization", ["", "Bearer tk_key", "Basic dGo6", "Bearer tj_a", "Bearer tj_ä_b"])
    async def test_text_that_is_no_token_is_refused(self, join: NodeJoin, authorization: str) -> None:
        with pytest.raises(Unauthenticated, match="no join token"):
            await join.exchange(authorization, claim="1", used_from="a")

    async def test_new_token_replaces_the_unused_one_of_the_same_name(self, rows: Rows, join: NodeJoin) -> None:
        first, second = await created(rows), await created(rows, a_login(credential_id="c2"))
        with pytest.raises(Forbidden, match="another token for the same node has replaced it"):
            await join.exchange(first.authorization, claim="1", used_from="a")
        await join.exchange(second.authorization, claim="1", used_from="a")

    async def test_join_is_in_the_audit_log(self, rows: Rows, join: NodeJoin) -> None:
        await rows.execute("insert into projects (name) values ('default') on conflict do nothing")
        token = await created(rows)
        for _ in range(2):
            await join.exchange(token.authorization, claim="1", used_from="10.0.0.7")
        written = "select array_agg(verb || ' ' || target || ' ' || (detail ->> 'from')) from audit_log"
        assert await rows.value(written) == ["node.join node:n 10.0.0.7"]

    async def test_name_of_an_existing_node_is_refused(self, rows: Rows) -> None:
        await rows.node("n")
        with pytest.raises(NodeNameInUse):
            await created(rows)


class TestJoinedNode:
    @pytest_asyncio.fixture
    async def node(self, rows: Rows) -> AsyncIterator[asyncpg.Connection]:
        """Provide a connection with the credentials of the registered node `n`."""
        await created(rows)
        connection = await asyncpg.connect(node_role_url(rows.owner_url, a_login()))
        id = await connection.fetchval(REGISTER, "n", EPOCH)
        await connection.execute("insert into node_beats (node_id, epoch) values ($1, $2)", id, EPOCH)
        yield connection
        await connection.close()

    async def remove(self, rows: Rows) -> None:
        await rows.execute("update node_beats set last_beat = now() - interval '1 h'")
        async with store_of(rows.owner_url, "admission") as store, store.write() as tx:
            assert await remove_node(tx, "n") is None

    async def test_removed_node_loses_its_sessions_and_its_role(self, rows: Rows, node: asyncpg.Connection) -> None:
        await self.remove(rows)
        await eventually(lambda: has_ended(node))  # Postgres ends a session by a signal
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(node_role_url(rows.owner_url, a_login()))

    async def test_node_can_join_again_after_its_removal(self, rows: Rows, node: asyncpg.Connection) -> None:
        await self.remove(rows)
        await created(rows, a_login(credential_id="c2"))
        again = await asyncpg.connect(node_role_url(rows.owner_url, a_login()))
        assert await again.execute("update nodes set url = 'http://new' where name = 'n'") == "UPDATE 1"
        assert await rows.value("select credential_id from nodes where name = 'n'") == "c2"
        await again.close()

    async def test_keys_of_a_removed_node_are_not_those_of_its_successor(self, tmp_path: Path) -> None:
        state = StateDir(tmp_path)
        state.create()
        first, second = (
            joined_node_secrets(state, NodeIdentity("cpu", "n"), credential_id) for credential_id in ("c1", "c2")
        )
        assert set(json.loads(first["caller_keys"]).values()).isdisjoint(json.loads(second["caller_keys"]).values())
        assert node_audience("n", "c1") != node_audience("n", "c2") != node_audience("n")

    async def test_administrator_keeps_a_node_closed_that_drained_itself(
        self, rows: Rows, node: asyncpg.Connection
    ) -> None:
        await node.fetchval("select drain_own_node(60)")
        async with store_of(rows.owner_url, "admission") as store, store.write() as tx:
            await change_node(tx, InternalChangeNodeRequest(name="n", cordoned=True))
        await node.fetchval("select drain_own_node(null)")
        assert await rows.value("select cordoned_at is not null from nodes where name = 'n'")

    @pytest.mark.parametrize("deadline", ["1e12", "'Infinity'", "'NaN'", "-1"])
    async def test_deadline_that_is_no_duration_is_refused(self, node: asyncpg.Connection, deadline: str) -> None:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="from 0 s to 30 days"):
            await node.fetchval(f"select drain_own_node({deadline})")

    async def test_node_that_never_registered_is_removed(self, rows: Rows) -> None:
        await created(rows, a_login("ghost", "c9"))
        async with store_of(rows.owner_url, "admission") as store, store.write() as tx:
            assert await remove_node(tx, "ghost") is None
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(node_role_url(rows.owner_url, a_login("ghost", "c9")))

    async def test_new_token_ends_roles_whose_tokens_expired_unused(self, rows: Rows) -> None:
        await created(rows, a_login("late", "c8"))
        await rows.execute("update join_tokens set expires_at = now() - interval '1 s'")
        await created(rows, a_login("other", "c7"))
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(node_role_url(rows.owner_url, a_login("late", "c8")))

    async def test_scheduler_accepts_tokens_of_a_node_until_its_removal(
        self, rows: Rows, node: asyncpg.Connection
    ) -> None:
        caller = joined_caller("cpu", "c1")
        token = TokenIssuer(caller, joined_service_token(MASTER, "c1")).token_for("scheduler")
        foreign = TokenIssuer(caller, joined_service_token(MASTER, "c2")).token_for("scheduler")
        async with store_of(rows.owner_url, "scheduler") as store:
            nodes = JoinedNodes(store, SecretStr(MASTER))
            verifier = TokenVerifier("scheduler", {}, derive_key=nodes.key_of)
            assert verifier.caller_of(token) == caller
            assert verifier.caller_of(foreign) is None
            assert await nodes.is_active(caller)
            assert not await nodes.is_active(joined_caller("gpu", "c1"))
            await self.remove(rows)
            assert not await JoinedNodes(store, SecretStr(MASTER)).is_active(caller)

    async def test_answer_about_a_node_is_used_for_five_seconds(self, rows: Rows, node: asyncpg.Connection) -> None:
        now = 100.0
        async with store_of(rows.owner_url, "scheduler") as store:
            nodes = JoinedNodes(store, SecretStr(MASTER), clock=lambda: now)
            assert await nodes.is_active("cpu@c1")
            await self.remove(rows)
            assert await nodes.is_active("cpu@c1")
            now = 105.0
            assert not await nodes.is_active("cpu@c1")

    async def test_node_drains_and_reopens_only_itself(self, rows: Rows, node: asyncpg.Connection) -> None:
        await rows.node("other")
        cordoned = "select array_agg(name) from nodes where cordoned_at is not null and drain_deadline_at > now()"
        assert await node.fetchval("select drain_own_node(60)")
        assert await rows.value(cordoned) == ["n"]
        assert await node.fetchval("select drain_own_node(null)")
        assert await rows.value(cordoned) is None
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await node.execute("update nodes set cordoned_at = now()")

    async def test_role_that_did_not_join_drains_nothing(self, rows: Rows) -> None:
        await rows.node("other")
        assert not await rows.value("select drain_own_node(60)")
        assert await rows.value("select cordoned_at from nodes") is None
