"""Test the leader's loop on a real Postgres: grants, settled actions and reclaimed attempts."""

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from arl_core.control.reclaim import ReclaimDecision
from arl_core.domain.model import Fence
from arl_core.domain.states import ActionState
from arl_core.queue.fairness import QueueWeight
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_scheduler.queries import repository
from arl_wire.internal.node import GrantBatchRequest
from support.builders import EPOCH
from support.conditions import eventually
from support.peers import RecordingPeers
from support.rows import Rows, rows_in, store_of
from support.scheduler import leading

OTHER_EPOCH = UUID(int=8)


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


async def silence(rows: Rows, node: int) -> None:
    await rows.execute("update node_beats set last_beat = now() - interval '1 minute' where node_id = $1", node)


class TestGrants:
    async def test_round_writes_one_update_and_sends_one_request_per_node(self, rows: Rows) -> None:
        first, second = await rows.node("a", cores=4), await rows.node("b", cores=4)
        ids = [await rows.action() for _ in range(8)]
        peers = RecordingPeers()
        async with leading(rows, peers):
            for id in ids:
                await rows.until_state(id, "granted")
            await peers.until(lambda peers: len(peers.hints) == 2)
        sql = "select count(*), count(distinct (xmin::text, cmin::text)) from actions where state = 'granted'"
        assert tuple(await rows.pool.fetchrow(sql)) == (8, 1)
        assert {url for url, _ in peers.hints} == {"http://a/internal/grants", "http://b/internal/grants"}
        on = {(await rows.of(id))["node_id"] for id in ids}
        assert on == {first, second}

    async def test_grant_request_matches_the_row(self, rows: Rows) -> None:
        node, action = await rows.node(), await rows.action(trajectory="x", scope="trajectory")
        peers = RecordingPeers()
        async with leading(rows, peers):
            await peers.until(lambda peers: bool(peers.hints))
        (batch,) = peers.bodies("/grants")
        row = await rows.of(action)
        assert isinstance(batch, GrantBatchRequest)
        (grant,) = batch.grants
        assert (batch.node_epoch, row["node_epoch"], row["node_id"]) == (EPOCH, EPOCH, node)
        assert (grant.id, grant.grant_no, grant.environment_id) == (action, row["grant_no"], row["environment_id"])
        assert grant.environment_id is not None

    async def test_grants_never_exceed_the_resources_of_a_node(self, rows: Rows) -> None:
        await rows.node(cores=3)
        ids = [await rows.action() for _ in range(5)]
        async with leading(rows):
            for id in ids[:3]:
                await rows.until_state(id, "granted")
            late = await rows.action(deadline_at=await rows.value("select now() + interval '50 milliseconds'"))
            await rows.until_state(late, "settled")
        assert [(await rows.of(id))["state"] for id in ids] == ["granted"] * 3 + ["queued"] * 2

    async def test_actions_submitted_during_the_backlog_read_are_granted_once(self, rows: Rows) -> None:
        await rows.node(cores=64)
        before = [await rows.action() for _ in range(20)]
        async with leading(rows, recovery_page_size=1):
            during = [await rows.action() for _ in range(20)]
            for id in (*before, *during):
                await rows.until_state(id, "granted")
        assert [(await rows.of(id))["grant_no"] for id in (*before, *during)] == [1] * 40

    async def test_higher_priority_is_granted_first(self, rows: Rows) -> None:
        await rows.node(cores=1)
        low, high = await rows.action(), await rows.action(priority=1)
        async with leading(rows):
            await rows.until_state(high, "granted")
        assert (await rows.of(low))["state"] == "queued"

    async def test_cordoned_node_gets_no_grants(self, rows: Rows) -> None:
        closed, opened = await rows.node("a", cores=1), await rows.node("b", cores=2)
        await rows.execute("update nodes set cordoned_at = now() where id = $1", closed)
        ids = [await rows.action() for _ in range(2)]
        async with leading(rows):
            assert [(await rows.until_state(id, "granted"))["node_id"] for id in ids] == [opened] * 2

    async def test_action_starts_on_a_node_that_ends_after_its_time_limit(self, rows: Rows) -> None:
        ending, endless = await rows.node("a", cores=1), await rows.node("b", cores=2)
        await rows.execute("update nodes set ends_at = now() + interval '200 seconds' where id = $1", ending)
        long, short = await rows.action(timeout_s=300), await rows.action(timeout_s=60)
        async with leading(rows):
            found = [(await rows.until_state(id, "granted"))["node_id"] for id in (long, short)]
        assert found == [endless, ending]

    async def test_wall_timeout_decides_on_the_node_of_an_action_with_shared_cores(self, rows: Rows) -> None:
        ending, endless = await rows.node("a", cores=2), await rows.node("b", cores=1)
        await rows.execute("update nodes set ends_at = now() + interval '200 seconds' where id = $1", ending)
        shared = {"guarantee_milli": 100, "limit_milli": None, "is_declared": False}
        ids = [await rows.action(timeout_s=60, wall_timeout_s=wall_s, cpu_sharing=shared) for wall_s in (300, 90)]
        async with leading(rows):
            assert [(await rows.until_state(id, "granted"))["node_id"] for id in ids] == [endless, ending]

    async def test_unused_cores_of_a_node_are_granted_beyond_its_capacity(self, rows: Rows) -> None:
        node = await rows.node(cores=1)
        await rows.execute("update node_beats set reclaimable_milli = 1000 where node_id = $1", node)
        ids = [await rows.action() for _ in range(3)]
        async with leading(rows):
            for id in ids[:2]:
                await rows.until_state(id, "granted")
            assert [(await rows.of(id))["state"] for id in ids].count("queued") == 1

    async def test_action_waits_for_a_node_with_its_template(self, rows: Rows) -> None:
        await rows.node("plain", cores=8)
        having = await rows.node("having", templates=("debian",))
        there, nowhere = await rows.action(template="debian"), await rows.action(template="alpine")
        anywhere = await rows.action(template="host")
        async with leading(rows):
            for id in (there, anywhere):
                await rows.until_state(id, "granted")
            assert (await rows.of(there))["node_id"] == having
            assert (await rows.of(nowhere))["state"] == "queued"
            await rows.execute("update nodes set templates = '[{\"name\": \"alpine\"}]' where name = 'plain'")
            await rows.until_state(nowhere, "granted")

    async def test_score_goes_to_the_node_where_its_service_is_resident(self, rows: Rows) -> None:
        nodes = [await rows.node(name) for name in ("cold", "warm")]
        await rows.execute("update nodes set capacity = '{\"slots:m\": 64}', kind = 'gpu'")
        services = [{"name": "m", "state": "resident"}, {"name": "other", "state": "host"}]
        await rows.execute("update nodes set services = $1 where name = 'warm'", json.dumps(services))
        score = await rows.action(demand={"slots:m": 1}, shape="quota")
        async with leading(rows):
            assert (await rows.until_state(score, "granted"))["node_id"] == nodes[1]

    async def test_silent_node_gets_no_grants(self, rows: Rows) -> None:
        await silence(rows, await rows.node("a", cores=1))
        async with leading(rows) as rounds:
            marker = await rows.action(deadline_at=await rows.value("select now() + interval '600 milliseconds'"))
            await rows.until(lambda: _is_leading(rounds))
            await rows.until_state(marker, "settled")
            late = await rows.action(deadline_at=await rows.value("select now() + interval '100 milliseconds'"))
            assert (await rows.until_state(late, "settled"))["outcome"] == "deadline_in_queue"

    async def test_cancelled_late_or_outdated_grants_are_not_written(self, rows: Rows) -> None:
        """Postgres rejects outdated grants even if the index still plans them."""
        node, now = await rows.node(), await rows.value("select now()")
        good, late = await rows.action(), await rows.action(deadline_at=now)
        cancelled, again = await rows.action(cancel_requested_at=now), await rows.action(grant_no=1)
        fences = [Fence(id, 1) for id in (good, late, cancelled, again)]
        grants = [repository.Grant(fence=fence, node=node, resources={"cpu_milli": 1}) for fence in fences]
        async with store_of(rows.owner_url, "scheduler") as store, store.write() as tx:
            assert await repository.grant(tx, grants, epochs={node: EPOCH}) == {Fence(good, 1)}

    async def test_grants_to_cordoned_nodes_or_paused_queues_are_not_written(self, rows: Rows) -> None:
        closed, opened = await rows.node("a"), await rows.node("b")
        await rows.execute("update nodes set cordoned_at = now() where id = $1", closed)
        await rows.execute("update queues set paused_at = now() where id = $1", paused := await rows.queue_of("paused"))
        good, there, halted = await rows.action(), await rows.action(), await rows.action(queue_id=paused)
        grants = [
            repository.Grant(fence=Fence(id, 1), node=node, resources={"cpu_milli": 1})
            for id, node in ((good, opened), (there, closed), (halted, opened))
        ]
        async with store_of(rows.owner_url, "scheduler") as store, store.write() as tx:
            granted = await repository.grant(tx, grants, epochs={closed: EPOCH, opened: EPOCH})
        assert granted == {Fence(good, 1)}


class TestQueuedActions:
    async def test_cancelled_queued_action_settles_without_a_grant(self, rows: Rows) -> None:
        await rows.node()
        action = await rows.action(cancel_requested_at=await rows.value("select now()"))
        async with leading(rows):
            assert (await rows.until_state(action, "settled"))["outcome"] == "cancelled"
        assert (await rows.of(action))["grant_no"] == 0

    async def test_action_past_its_deadline_settles_without_any_node(self, rows: Rows) -> None:
        action = await rows.action(deadline_at=await rows.value("select now() + interval '100 milliseconds'"))
        async with leading(rows):
            row = await rows.until_state(action, "settled")
        assert (row["outcome"], row["grant_no"]) == ("deadline_in_queue", 0)
        assert row["settled_at"] >= row["deadline_at"]

    async def test_action_of_a_deleted_environment_starts_a_new_one(self, rows: Rows) -> None:
        """The action was admitted after the delete request and was then re-queued."""
        node, now = await rows.node(), await rows.value("select now()")
        gone = await rows.environment("x", node, ended_at=now, end_reason="deleted", delete_requested_at=now)
        action = await rows.action(trajectory="x", scope="trajectory", environment_id=gone)
        async with leading(rows):
            row = await rows.until_state(action, "granted")
        assert row["environment_id"] not in (None, gone)

    async def test_attempt_started_since_the_poll_is_not_reclaimed(self, rows: Rows) -> None:
        node = await rows.node()
        action = await rows.action(state="running", node_id=node, node_epoch=EPOCH, grant_no=1)
        seen = ReclaimDecision(
            Fence(action, 1), ActionState.GRANTED, requeue=True, is_failure=False, reason="node_lost"
        )
        async with store_of(rows.owner_url, "scheduler") as store, store.write() as tx:
            assert await repository.reclaim(tx, [seen]) == []
        assert (await rows.of(action))["state"] == "running"

    async def test_pause_unknown_to_a_round_does_not_rebuild_the_index(
        self, rows: Rows, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The leader recovers with one poll and does not read the whole backlog again."""
        node = await rows.node(cores=1)
        running = await rows.action(state="running", node_id=node)
        waiting = await rows.action()
        async with leading(rows, poll_busy_s=1.0) as rounds:
            marker = await rows.action(deadline_at=await rows.value("select now()"))
            await rows.until_state(marker, "settled")
            await rows.execute("update queues set paused_at = now()")
            await rows.unguarded("update actions set state = 'settled', outcome = 'ok' where id = $1", running)
            rounds.inbox.freed([Fence(running, 1)])
            late = await rows.action(deadline_at=await rows.value("select now()"))
            await rows.until_state(late, "settled")
            await rows.execute("update queues set paused_at = null")
            rounds.inbox.admitted([])
            await rows.until_state(waiting, "granted")
        assert "rebuilding" not in caplog.text

    async def test_repeatedly_refused_grant_rebuilds_the_index_once(
        self, rows: Rows, caplog: pytest.LogCaptureFixture
    ) -> None:
        home = await rows.environment("x", await rows.node(cores=8))
        async with leading(rows):
            inside = await rows.action(trajectory="x", scope="trajectory")
            await rows.until_state(inside, "granted")
            # No poll sees this.
            await rows.execute("update environments set delete_requested_at = now() where id = $1", home)
            refused = "update actions set state = 'queued', reason = 'full', admitted_xid = pg_current_xact_id()"
            await rows.unguarded(f"{refused} where id = $1", inside)
            await eventually(lambda: _has_logged(caplog, "rebuilding"))
            for _ in range(5):
                await rows.until_state(await rows.action(), "granted")
        assert caplog.text.count("rebuilding the index") == 1

    async def test_action_queued_for_a_lost_environment_settles(self, rows: Rows) -> None:
        node = await rows.node()
        await rows.environment("x", node, lost_at=await rows.value("select now()"))
        action = await rows.action(trajectory="x", scope="trajectory")
        async with leading(rows):
            await rows.until_state(action, "settled")
        assert await rows.state(action) == ("settled", "infra_error", "environment_lost")


async def _has_logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def _is_leading(rounds: SchedulingLoop) -> bool:
    return rounds.election.term is not None


class TestReclaim:
    @pytest.mark.parametrize(
        ("state", "retries", "failures", "expected"),
        [
            ("granted", 0, 0, ("queued", None, None, 0)),
            ("running", 0, 0, ("settled", "infra_error", "node_lost", 1)),
            ("running", 2, 1, ("queued", None, None, 2)),
            ("running", 2, 2, ("settled", "infra_error", "node_lost", 3)),
        ],
    )
    async def test_attempts_of_a_silent_node_are_reclaimed(
        self, rows: Rows, state: str, retries: int, failures: int, expected: tuple[Any, ...]
    ) -> None:
        node = await rows.node()
        held = {"state": state, "node_id": node, "retries": retries, "failures": failures}
        action = await rows.action(**held)
        await silence(rows, node)
        async with leading(rows):
            await rows.until_state(action, str(expected[0]))
        row = await rows.of(action)
        assert (row["state"], row["outcome"], row["reason"], row["failures"]) == expected
        assert row["grant_no"] == 1
        kept = await rows.value("select reason from attempts where id = $1", action)
        assert kept == ("node_lost" if expected[0] == "queued" else None)

    async def test_reclaimed_action_is_granted_to_another_node(self, rows: Rows) -> None:
        dead, alive = await rows.node("dead"), await rows.node("alive")
        action = await rows.action(
            state="running", node_id=dead, retries=1, granted_at=await rows.value("select now()")
        )
        await silence(rows, dead)
        async with leading(rows):
            row = await rows.until_state(action, "granted")
        assert (row["node_id"], row["grant_no"], row["failures"]) == (alive, 2, 1)

    async def test_node_with_a_new_epoch_loses_its_attempts_immediately(self, rows: Rows) -> None:
        node = await rows.node(epoch=OTHER_EPOCH)
        action = await rows.action(state="running", node_id=node)
        async with leading(rows, node_ttl_s=60.0):
            await rows.until_state(action, "settled")
        assert await rows.state(action) == ("settled", "infra_error", "node_lost")

    async def test_action_in_an_environment_survives_a_short_node_silence(self, rows: Rows) -> None:
        """The action stays running until its node returns. If the node is lost, the action is not retried."""
        node = await rows.node()
        environment = await rows.environment("x", node)
        held = {"state": "running", "node_id": node, "environment_id": environment, "trajectory": "x"}
        inside = await rows.action(**held, scope="trajectory", retries=3, idempotent=True)
        outside = await rows.action(state="running", node_id=node)
        waiting = await rows.action(trajectory="x", scope="trajectory")
        await silence(rows, node)
        async with leading(rows, environment_loss_after_s=60.0):
            await rows.until_state(outside, "settled")
            assert await rows.state(inside) == ("running", None, None)
        async with leading(rows):
            await rows.until_state(inside, "settled")
            await rows.until_state(waiting, "settled")
        assert await rows.state(inside) == ("settled", "infra_error", "environment_lost")
        assert await rows.state(waiting) == ("settled", "infra_error", "environment_lost")
        assert await rows.value("select end_reason from environments where id = $1", environment) == "node_away"

    async def test_new_leader_gives_a_silent_node_a_full_lease(self, rows: Rows) -> None:
        """A new leader cannot know whether the node sent heartbeats while there was no leader."""
        node = await rows.node()
        action = await rows.action(state="running", node_id=node)
        await silence(rows, node)
        marker = await rows.action(cancel_requested_at=await rows.value("select now()"))
        async with leading(rows, node_ttl_s=60.0):
            await rows.until_state(marker, "settled")
            assert (await rows.of(action))["state"] == "running"

    async def test_postgres_restart_does_not_count_as_node_silence(self, rows: Rows) -> None:
        await rows.node()
        await rows.execute("update node_beats set last_beat = pg_postmaster_start_time() - interval '1 hour'")
        async with store_of(rows.owner_url, "scheduler") as store, store.read() as tx:
            (node,) = (await repository.poll(tx, checkpoint=0)).nodes
        assert node.last_heartbeat == await rows.value("select extract(epoch from pg_postmaster_start_time())::float8")


class TestWeights:
    async def test_poll_reads_weights_of_queues_and_projects(self, rows: Rows) -> None:
        other = await rows.value("insert into projects (name, weight) values ('other', 0.5) returning id")
        theirs = await rows.queue_of("heavy", project=other)
        await rows.execute("update queues set weight = 3 where id = $1", theirs)
        async with store_of(rows.owner_url, "scheduler") as store, store.read() as tx:
            poll = await repository.poll(tx, checkpoint=0)
        assert poll.weights == {
            rows.queue: QueueWeight(project=rows.project, weight=1.0, project_weight=1.0),
            theirs: QueueWeight(project=other, weight=3.0, project_weight=0.5),
        }


class TestTwoSchedulers:
    async def test_two_schedulers_grant_each_action_once(self, rows: Rows) -> None:
        await rows.node(cores=100)
        async with leading(rows) as one, leading(rows) as other:
            ids = [await rows.action() for _ in range(50)]
            for id in ids:
                await rows.until_state(id, "granted")
            assert [one.election.term, other.election.term].count(None) == 1
        assert await rows.value("select array_agg(distinct grant_no) from actions") == [1]

    async def test_leader_that_lost_its_term_writes_nothing(self, rows: Rows) -> None:
        await rows.node()
        async with leading(rows) as rounds:
            await rows.until(lambda: _is_leading(rounds))
            await rows.execute("update leader_term set term = term + 1")
            await rows.execute("update leader_lease set expires_at = now() + interval '1 hour', term = 77")
            action = await rows.action()

            async def has_lost() -> bool:
                return rounds.election.term is None

            await rows.until(has_lost)
        assert (await rows.of(action))["state"] == "queued"
