"""Test the leader's in-memory index: notifications, polls and agreement with the rows."""

from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from arl_core.domain.model import Fence, Grant, PinnedEnvironment, Resources
from arl_core.domain.states import ActionOutcome, ActionState
from arl_core.policies.policy import FirstComeFirstServed
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.queries.repository import poll
from arl_wire.internal.scheduler import QueuedActionRow
from support.builders import a_held_action, a_node_row, a_poll, a_queued_row, an_environment_row, numbered
from support.rows import rows_in, store_of
from support.scheduler_model import Database

NOW = 1000.0


def an_index(*queued: QueuedActionRow) -> SchedulerIndex:
    """Return an index with one node of two cores and 1000 MiB, read by a first poll."""
    index = SchedulerIndex()
    index.reconcile(a_poll(queued=queued))
    return index


def a_round(index: SchedulerIndex) -> tuple[Grant, ...]:
    """Run one round, apply all its grants and return them."""
    snapshot = index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)
    grants = FirstComeFirstServed().plan(snapshot).grants
    index.apply_grants(grants, now=NOW)
    return grants


def free(index: SchedulerIndex, node: int = 1) -> Resources:
    snapshot = index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)
    return snapshot.nodes[node].available


def ids(grants: tuple[Grant, ...]) -> list[int]:
    return [grant.fence.action_id.int for grant in grants]


def settled(index: SchedulerIndex, grants: tuple[Grant, ...]) -> None:
    index.release_attempts(grant.fence for grant in grants)


class TestLateCommits:
    async def test_row_committed_late_is_found_by_a_later_poll(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "scheduler") as store, store.read() as tx:
            late = await rows.pool.acquire()
            transaction = late.transaction()
            await transaction.start()
            await late.fetchval("select pg_current_xact_id()")
            early = await rows.action()
            first = await poll(tx, checkpoint=0)
            sql = "update actions set admitted_xid = pg_current_xact_id() where id = $1"
            hidden = await rows.action()
            await late.execute("set local session_replication_role = replica")
            await late.execute(sql, hidden)
            await transaction.commit()
            await rows.pool.release(late)
            second = await poll(tx, checkpoint=first.checkpoint)
            third = await poll(tx, checkpoint=second.checkpoint)
        assert [row.id for row in first.queued] == [early]
        assert hidden in {row.id for row in second.queued}
        assert third.queued == ()

    async def test_environment_change_committed_late_is_found_by_a_later_poll(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "scheduler") as store, store.read() as tx:
            environment = await rows.environment("x", await rows.node())
            async with rows.pool.acquire() as late, late.transaction():
                await late.execute("update environments set lost_at = now(), changed_xid = pg_current_xact_id()")
                first = await poll(tx, checkpoint=0)
            second = await poll(tx, checkpoint=first.checkpoint)
        assert [(row.id, row.is_ended) for row in first.environments] == [(environment, False)]
        assert [(row.id, row.is_ended) for row in second.environments] == [(environment, True)]


class TestNotifications:
    def test_notification_about_a_known_queued_action_is_ignored(self) -> None:
        index = an_index(a_queued_row(1))
        index.admit([a_queued_row(1)])
        assert index.queued_count == 1

    def test_notification_about_a_granted_action_is_ignored(self) -> None:
        index = an_index(a_queued_row(1))
        a_round(index)
        index.admit([a_queued_row(1)])
        assert (index.queued_count, index.allocation_count) == (0, 1)

    def test_resources_freed_twice_count_once(self) -> None:
        index = an_index(a_queued_row(1), a_queued_row(2))
        first, _ = a_round(index)
        for _ in range(2):
            index.release_attempts([first.fence])
        assert free(index)["cpu_milli"] == 1000

    def test_late_notification_about_an_earlier_attempt_frees_nothing(self) -> None:
        index = an_index(a_queued_row(1))
        (first,) = a_round(index)
        index.release_attempts([first.fence])
        index.reconcile(a_poll(queued=[a_queued_row(1, grant_no=1)]))
        (second,) = a_round(index)
        index.release_attempts([first.fence])
        assert second.fence.grant_no == 2
        assert free(index)["cpu_milli"] == 1000

    def test_poll_updates_a_row_from_a_stale_notification(self) -> None:
        """The notification is older than one grant. With its old fence Postgres would reject every grant."""
        full = a_held_action(Fence(numbered(9), 1), resources={"cpu_milli": 2000})
        index = SchedulerIndex()
        index.reconcile(a_poll(held=[full]))
        index.admit([a_queued_row(1, grant_no=0)])
        index.reconcile(a_poll(queued=[a_queued_row(1, grant_no=1)], held=[full]))
        index.release_attempts([full.fence])
        assert [grant.fence for grant in a_round(index)] == [Fence(numbered(1), 2)]

    def test_requeued_action_is_granted_once(self) -> None:
        """Another action keeps the queue of the class alive."""
        other = a_held_action(Fence(numbered(9), 1))
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=[a_queued_row(1), a_queued_row(2)], held=[other]))
        (first,) = a_round(index)
        index.release_attempts([first.fence])
        index.reconcile(a_poll(queued=[a_queued_row(1, grant_no=1)]))
        snapshot = index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)
        again = [grant.fence for grant in FirstComeFirstServed().plan(snapshot).grants]
        assert again == [Fence(numbered(1), 2), Fence(numbered(2), 1)]

    def test_poll_frees_resources_without_a_notification(self) -> None:
        index = an_index(a_queued_row(1))
        a_round(index)
        index.reconcile(a_poll())
        assert (index.allocation_count, free(index)["cpu_milli"]) == (0, 2000)

    def test_poll_adopts_actions_granted_by_another_leader(self) -> None:
        index = an_index(a_queued_row(1))
        index.reconcile(a_poll(held=[a_held_action(Fence(numbered(1), 1))]))
        assert (index.queued_count, index.allocation_count, free(index)["cpu_milli"]) == (0, 1, 1000)


class TestEnvironments:
    def test_actions_of_one_environment_run_sequentially_by_id(self) -> None:
        rows = [a_queued_row(number, trajectory="x", persistent=True) for number in (3, 1, 2)]
        index = an_index(*rows)
        order = []
        for _ in rows:
            grants = a_round(index)
            order += ids(grants)
            settled(index, grants)
        assert order == [1, 2, 3]

    def test_priority_does_not_reorder_actions_of_one_environment(self) -> None:
        first = a_queued_row(1, trajectory="x", persistent=True)
        index = an_index(first, a_queued_row(2, trajectory="x", persistent=True, priority=9))
        assert ids(a_round(index)) == [1]

    def test_actions_of_different_environments_run_concurrently(self) -> None:
        index = an_index(*(a_queued_row(n, trajectory=f"x{n}", persistent=True) for n in (1, 2)))
        assert ids(a_round(index)) == [1, 2]

    def test_environment_keeps_memory_between_actions_but_not_cores(self) -> None:
        index = an_index(a_queued_row(1, trajectory="x", persistent=True))
        grants = a_round(index)
        (grant,) = grants
        assert grant.environment is not None
        assert free(index) == {"cpu_milli": 1000, "memory_mib": 900, "disk_mib": 990}
        settled(index, grants)
        index.reconcile(a_poll(environments=[an_environment_row(grant.environment)]))
        assert free(index) == {"cpu_milli": 2000, "memory_mib": 900, "disk_mib": 990}

    def test_ended_environment_frees_its_memory(self) -> None:
        index = SchedulerIndex()
        environment = uuid4()
        index.reconcile(a_poll(environments=[an_environment_row(environment)]))
        held = free(index)["memory_mib"]
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_ended=True, is_delete_requested=True)]))
        assert (held, free(index)["memory_mib"]) == (900, 1000)

    def test_next_action_uses_the_same_environment_before_any_poll(self) -> None:
        """The second action and the settlement arrive by notification, faster than any poll."""
        index = an_index(a_queued_row(1, trajectory="x", persistent=True))
        grants = a_round(index)
        settled(index, grants)
        index.admit([a_queued_row(2, trajectory="x", persistent=True)])
        (second,) = a_round(index)
        assert second.environment == grants[0].environment

    def test_new_environment_keeps_its_memory_before_any_poll(self) -> None:
        index = an_index(a_queued_row(1, trajectory="x", persistent=True))
        settled(index, a_round(index))
        assert free(index)["memory_mib"] == 900

    def test_environment_that_never_started_is_not_pinned_to_its_node(self) -> None:
        """The grant was reclaimed before it started, so the environment has no row."""
        rows = [a_queued_row(number, trajectory="x", persistent=True) for number in (1, 2)]
        index = an_index(*rows)
        (grant,) = a_round(index)
        index.release_attempts([grant.fence])
        nodes = [a_node_row(1, last_heartbeat=0.0), a_node_row(2)]
        requeued = rows[0].model_copy(update={"grant_no": 1, "environment_id": grant.environment})
        index.begin_poll()
        index.reconcile(a_poll(queued=[requeued], nodes=nodes))
        snapshot = index.snapshot(now=NOW, silent_after_s=10, watching_since=0.0)
        assert [grant.node for grant in FirstComeFirstServed().plan(snapshot).grants] == [2]

    def test_action_goes_to_the_node_of_its_environment(self) -> None:
        environment = uuid4()
        nodes = [a_node_row(1), a_node_row(2)]
        index = SchedulerIndex()
        index.reconcile(a_poll(environments=[an_environment_row(environment, node=2)], nodes=nodes))
        index.admit([a_queued_row(1, trajectory="x", persistent=True)])
        (grant,) = a_round(index)
        assert (grant.node, grant.environment) == (2, environment)

    def test_lost_environment_strands_its_queued_actions(self) -> None:
        environment = uuid4()
        queued = [a_queued_row(number, trajectory="x", persistent=True) for number in (1, 2)]
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=queued, environments=[an_environment_row(environment, is_ended=True)]))
        assert a_round(index) == ()
        assert list(index.environments.stranded_actions(limit=1000)) == [numbered(1), numbered(2)]

    @pytest.mark.parametrize(
        ("is_out_of_memory", "expected"),
        [
            (False, (ActionOutcome.INFRA_ERROR, "environment_lost")),
            (True, (ActionOutcome.LIMIT_EXCEEDED, "environment_out_of_memory")),
        ],
    )
    def test_stranded_action_is_attributed_to_the_cause_of_the_loss(
        self, is_out_of_memory: bool, expected: tuple[ActionOutcome, str]
    ) -> None:
        index = SchedulerIndex()
        row = an_environment_row(uuid4(), is_ended=True, is_out_of_memory=is_out_of_memory)
        index.reconcile(a_poll(queued=[a_queued_row(1, trajectory="x", persistent=True)], environments=[row]))
        assert index.environments.stranded_actions(limit=1000) == {numbered(1): expected}

    def test_deleted_environment_is_replaced_once_it_has_ended(self) -> None:
        environment = uuid4()
        index = SchedulerIndex()
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_delete_requested=True)]))
        index.admit([a_queued_row(1, trajectory="x", persistent=True)])
        assert (a_round(index), index.environments.stranded_actions(limit=1000)) == ((), {})
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_ended=True, is_delete_requested=True)]))
        (grant,) = a_round(index)
        assert grant.environment not in (None, environment)

    def test_environment_deleted_after_its_loss_is_replaced(self) -> None:
        environment = uuid4()
        index = SchedulerIndex()
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_ended=True)]))
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_ended=True, is_delete_requested=True)]))
        index.admit([a_queued_row(1, trajectory="x", persistent=True)])
        (grant,) = a_round(index)
        assert (grant.environment != environment, index.environments.stranded_actions(limit=1000)) == (True, {})

    def test_requeued_action_is_not_overtaken_in_its_environment(self) -> None:
        index = an_index(*(a_queued_row(number, trajectory="a", persistent=True) for number in (1, 2)))
        (first,) = a_round(index)
        index.release_attempts([first.fence], requeued={first.fence})
        assert a_round(index) == (), "the second waits for the poll that reads the first"
        index.begin_poll()
        row = a_queued_row(1, trajectory="a", persistent=True, grant_no=1, environment_id=first.environment)
        index.reconcile(a_poll(queued=[row]))
        assert ids(a_round(index)) == [1]

    def test_new_leader_knows_an_environment_before_its_row_exists(self) -> None:
        """The queued action must not create a second environment while the first one's row is being written."""
        held = a_held_action(Fence(numbered(1), 1), trajectory="a", environment=numbered(100))
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=[a_queued_row(2, trajectory="a", persistent=True)], held=[held]))
        index.release_attempts([held.fence])
        (second,) = a_round(index)
        assert second.environment == numbered(100)

    def test_new_leader_does_not_grant_into_a_busy_environment(self) -> None:
        environment = uuid4()
        held = a_held_action(Fence(numbered(1), 1), trajectory="x", environment=environment)
        queued = [a_queued_row(2, trajectory="x", persistent=True)]
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=queued, held=[held], environments=[an_environment_row(environment)]))
        assert a_round(index) == ()
        index.release_attempts([held.fence])
        assert [(grant.environment, grant.node) for grant in a_round(index)] == [(environment, 1)]


class LeaderAndRows(RuleBasedStateMachine):
    """After any events and lost notifications, polls make the index equal to one rebuilt from the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Database()
        self.index = SchedulerIndex()
        self.poll()

    @rule(trajectory=st.sampled_from([None, "x", "y"]), hint=st.booleans())
    def submit(self, trajectory: str | None, hint: bool) -> None:
        row = self.rows.submit(trajectory)
        if hint:
            self.index.admit([row.queued()])

    @rule()
    def round(self) -> None:
        snapshot = self.index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)
        decided = FirstComeFirstServed().plan(snapshot).grants
        taken = [grant for grant in decided if self.rows.take(grant)]
        assert len(taken) == len(decided)
        self.index.apply_grants(taken, now=NOW)

    @precondition(lambda self: self.rows.in_state(ActionState.GRANTED))
    @rule(data=st.data(), starts=st.sampled_from([True, True, True, False]), hint=st.booleans())
    def start_or_refuse(self, data: st.DataObject, starts: bool, hint: bool) -> None:
        row = data.draw(st.sampled_from(self.rows.in_state(ActionState.GRANTED)))
        if starts:
            assert self.rows.start(row), "a living environment was passed over"
            return
        self.rows.requeue(row)
        if hint:
            self.index.release_attempts([Fence(row.id, row.grant_no)])

    @precondition(lambda self: self.rows.in_state(ActionState.RUNNING))
    @rule(data=st.data(), again=st.booleans(), hint=st.booleans())
    def end(self, data: st.DataObject, again: bool, hint: bool) -> None:
        row = data.draw(st.sampled_from(self.rows.in_state(ActionState.RUNNING)))
        fence = Fence(row.id, row.grant_no)
        if again:
            self.rows.requeue(row)
        else:
            row.state = ActionState.SETTLED
        if hint:
            self.index.release_attempts([fence, fence])

    @precondition(lambda self: any(not self.rows.users(each) for each in self.rows.live()))
    @rule(data=st.data(), lost=st.booleans())
    def end_environment(self, data: st.DataObject, lost: bool) -> None:
        """End an idle environment: its node loses it, or a deletion cancels its queued actions first."""
        idle = [each for each in self.rows.live() if not self.rows.users(each)]
        environment = data.draw(st.sampled_from(idle))
        if not lost:
            self.rows.change(environment, is_delete_requested=True)
            self.index.drop_refused(self.rows.cancel(environment.trajectory))
            self.poll()
            environment = self.rows.environments[environment.id][1]
        self.rows.change(environment, is_ended=True)
        self.poll()

    @rule()
    def poll(self) -> None:
        self.index.begin_poll()
        self.index.reconcile(self.rows.poll(self.index.checkpoint))
        stranded = self.index.environments.stranded_actions(limit=1000)
        for id in stranded:
            self.rows.rows[id].state = ActionState.SETTLED
        self.index.drop_refused(stranded)

    @rule()
    def compare(self) -> None:
        """Compare the index with a rebuilt one after two polls; the first one confirms new environments."""
        self.poll()
        self.poll()
        rebuilt = SchedulerIndex()
        rebuilt.reconcile(self.rows.poll(0))
        assert self.view(self.index) == self.view(rebuilt)

    def view(self, index: SchedulerIndex) -> object:
        snapshot = index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)
        candidates = {
            action.id: (action.grant_no, action.environment and self.known(action.environment))
            for action in snapshot.queue.in_order()
        }
        running = [each for node in snapshot.nodes for each in snapshot.running.on_node(node).values()]
        held = {each.fence: (each.node, dict(each.resources)) for each in running}
        return index.queued_count, candidates, held, [dict(pool.available) for pool in snapshot.nodes.values()]

    def known(self, environment: PinnedEnvironment) -> tuple[UUID | None, int | None]:
        """Return the environment's id, or None if it has no row yet, and its node."""
        return (environment.id if environment.id in self.rows.environments else None), environment.node


TestLeaderAndRows = LeaderAndRows.TestCase
TestLeaderAndRows.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, database=None)
