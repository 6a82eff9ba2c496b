"""The leader's memory: what hints and polls make of it, alone and against rows."""

from uuid import UUID, uuid4

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from arl_core.domain.model import Fence, Grant, PinnedEnvironment, Resources
from arl_core.domain.states import ActionState
from arl_core.policies.policy import FirstComeFirstServed
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.queries.repository import poll
from arl_wire.internal.scheduler import QueuedActionRow
from support.builders import a_held_action, a_node_row, a_poll, a_queued_row, an_environment_row, numbered
from support.rows import rows_in, store_of
from support.scheduler_model import Database

NOW = 1000.0


def an_index(*queued: QueuedActionRow) -> SchedulerIndex:
    """One node of two cores and 1000 MiB, known by a first poll."""
    index = SchedulerIndex()
    index.reconcile(a_poll(queued=queued))
    return index


def a_round(index: SchedulerIndex) -> tuple[Grant, ...]:
    """What a round grants; Postgres agrees with all of it."""
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
    async def test_a_row_whose_transaction_was_open_is_found_by_a_later_poll(self, database: str) -> None:
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

    async def test_an_environment_that_changes_late_is_found_by_a_later_poll(self, database: str) -> None:
        async with rows_in(database) as rows, store_of(database, "scheduler") as store, store.read() as tx:
            environment = await rows.environment("x", await rows.node())
            async with rows.pool.acquire() as late, late.transaction():
                await late.execute("update environments set lost_at = now(), changed_xid = pg_current_xact_id()")
                first = await poll(tx, checkpoint=0)
            second = await poll(tx, checkpoint=first.checkpoint)
        assert [(row.id, row.is_ended) for row in first.environments] == [(environment, False)]
        assert [(row.id, row.is_ended) for row in second.environments] == [(environment, True)]


class TestHints:
    def test_a_row_known_already_is_nothing_new(self) -> None:
        index = an_index(a_queued_row(1))
        index.admit([a_queued_row(1)])
        assert index.queued_count == 1

    def test_a_hint_about_a_held_action_does_no_harm(self) -> None:
        index = an_index(a_queued_row(1))
        a_round(index)
        index.admit([a_queued_row(1)])
        assert (index.queued_count, index.allocation_count) == (0, 1)

    def test_amounts_that_are_freed_twice_count_once(self) -> None:
        index = an_index(a_queued_row(1), a_queued_row(2))
        first, _ = a_round(index)
        for _ in range(2):
            index.release_attempts([first.fence])
        assert free(index)["cpu_milli"] == 1000

    def test_a_late_word_about_an_earlier_attempt_frees_nothing(self) -> None:
        index = an_index(a_queued_row(1))
        (first,) = a_round(index)
        index.release_attempts([first.fence])
        index.reconcile(a_poll(queued=[a_queued_row(1, grant_no=1)]))
        (second,) = a_round(index)
        index.release_attempts([first.fence])
        assert second.fence.grant_no == 2
        assert free(index)["cpu_milli"] == 1000

    def test_a_poll_brings_a_requeued_row_up_to_date_that_a_stale_hint_brought_back(self) -> None:
        """The hint was under way during a whole grant; with the old fence Postgres would refuse every grant."""
        full = a_held_action(Fence(numbered(9), 1), resources={"cpu_milli": 2000})
        index = SchedulerIndex()
        index.reconcile(a_poll(held=[full]))
        index.admit([a_queued_row(1, grant_no=0)])
        index.reconcile(a_poll(queued=[a_queued_row(1, grant_no=1)], held=[full]))
        index.release_attempts([full.fence])
        assert [grant.fence for grant in a_round(index)] == [Fence(numbered(1), 2)]

    def test_an_action_that_was_queued_again_is_granted_once(self) -> None:
        """Another of its class waits all the time, so that the class's queue lives on."""
        other = a_held_action(Fence(numbered(9), 1))
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=[a_queued_row(1), a_queued_row(2)], held=[other]))
        (first,) = a_round(index)
        index.release_attempts([first.fence])
        index.reconcile(a_poll(queued=[a_queued_row(1, grant_no=1)]))
        snapshot = index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)
        again = [grant.fence for grant in FirstComeFirstServed().plan(snapshot).grants]
        assert again == [Fence(numbered(1), 2), Fence(numbered(2), 1)]

    def test_a_poll_corrects_what_no_hint_told(self) -> None:
        index = an_index(a_queued_row(1))
        a_round(index)
        index.reconcile(a_poll())
        assert (index.allocation_count, free(index)["cpu_milli"]) == (0, 2000)

    def test_a_poll_adopts_what_another_leader_granted(self) -> None:
        index = an_index(a_queued_row(1))
        index.reconcile(a_poll(held=[a_held_action(Fence(numbered(1), 1))]))
        assert (index.queued_count, index.allocation_count, free(index)["cpu_milli"]) == (0, 1, 1000)


class TestEnvironments:
    def test_actions_of_one_environment_run_one_at_a_time_in_order_of_id(self) -> None:
        rows = [a_queued_row(number, trajectory="x", persistent=True) for number in (3, 1, 2)]
        index = an_index(*rows)
        order = []
        for _ in rows:
            grants = a_round(index)
            order += ids(grants)
            settled(index, grants)
        assert order == [1, 2, 3]

    def test_they_do_so_whatever_their_priority(self) -> None:
        first = a_queued_row(1, trajectory="x", persistent=True)
        index = an_index(first, a_queued_row(2, trajectory="x", persistent=True, priority=9))
        assert ids(a_round(index)) == [1]

    def test_environments_run_beside_each_other(self) -> None:
        index = an_index(*(a_queued_row(n, trajectory=f"x{n}", persistent=True) for n in (1, 2)))
        assert ids(a_round(index)) == [1, 2]

    def test_memory_is_held_across_actions_and_cores_are_not(self) -> None:
        index = an_index(a_queued_row(1, trajectory="x", persistent=True))
        grants = a_round(index)
        (grant,) = grants
        assert grant.environment is not None
        assert free(index) == {"cpu_milli": 1000, "memory_mib": 900, "disk_mib": 990}
        settled(index, grants)
        index.reconcile(a_poll(environments=[an_environment_row(grant.environment)]))
        assert free(index) == {"cpu_milli": 2000, "memory_mib": 900, "disk_mib": 990}

    def test_memory_is_free_again_at_its_end(self) -> None:
        index = SchedulerIndex()
        environment = uuid4()
        index.reconcile(a_poll(environments=[an_environment_row(environment)]))
        held = free(index)["memory_mib"]
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_ended=True, is_delete_requested=True)]))
        assert (held, free(index)["memory_mib"]) == (900, 1000)

    def test_the_next_action_goes_to_the_same_environment_before_any_poll_has_seen_it(self) -> None:
        """Rollouts think for less than a poll: the second action comes by hint, the settle too."""
        index = an_index(a_queued_row(1, trajectory="x", persistent=True))
        grants = a_round(index)
        settled(index, grants)
        index.admit([a_queued_row(2, trajectory="x", persistent=True)])
        (second,) = a_round(index)
        assert second.environment == grants[0].environment

    def test_its_memory_stays_held_before_any_poll_has_seen_it(self) -> None:
        index = an_index(a_queued_row(1, trajectory="x", persistent=True))
        settled(index, a_round(index))
        assert free(index)["memory_mib"] == 900

    def test_an_environment_that_was_never_made_is_not_pinned_to_the_node_that_died(self) -> None:
        """Granted there, reclaimed before it started: no row of the environment exists."""
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

    def test_an_action_goes_where_its_environment_lives(self) -> None:
        environment = uuid4()
        nodes = [a_node_row(1), a_node_row(2)]
        index = SchedulerIndex()
        index.reconcile(a_poll(environments=[an_environment_row(environment, node=2)], nodes=nodes))
        index.admit([a_queued_row(1, trajectory="x", persistent=True)])
        (grant,) = a_round(index)
        assert (grant.node, grant.environment) == (2, environment)

    def test_a_tombstone_strands_its_queued_actions(self) -> None:
        environment = uuid4()
        queued = [a_queued_row(number, trajectory="x", persistent=True) for number in (1, 2)]
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=queued, environments=[an_environment_row(environment, is_ended=True)]))
        assert a_round(index) == ()
        assert index.environments.stranded_actions() == [numbered(1), numbered(2)]

    def test_a_deleted_environment_is_made_anew_once_it_has_ended(self) -> None:
        environment = uuid4()
        index = SchedulerIndex()
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_delete_requested=True)]))
        index.admit([a_queued_row(1, trajectory="x", persistent=True)])
        assert (a_round(index), index.environments.stranded_actions()) == ((), [])
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_ended=True, is_delete_requested=True)]))
        (grant,) = a_round(index)
        assert grant.environment not in (None, environment)

    def test_one_that_is_deleted_after_it_was_lost_is_made_anew(self) -> None:
        environment = uuid4()
        index = SchedulerIndex()
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_ended=True)]))
        index.reconcile(a_poll(environments=[an_environment_row(environment, is_ended=True, is_delete_requested=True)]))
        index.admit([a_queued_row(1, trajectory="x", persistent=True)])
        (grant,) = a_round(index)
        assert (grant.environment != environment, index.environments.stranded_actions()) == (True, [])

    def test_an_action_that_goes_back_to_the_queue_is_not_overtaken(self) -> None:
        index = an_index(*(a_queued_row(number, trajectory="a", persistent=True) for number in (1, 2)))
        (first,) = a_round(index)
        index.release_attempts([first.fence], requeued={first.fence})
        assert a_round(index) == (), "the second waits for the poll that reads the first"
        index.begin_poll()
        row = a_queued_row(1, trajectory="a", persistent=True, grant_no=1, environment_id=first.environment)
        index.reconcile(a_poll(queued=[row]))
        assert ids(a_round(index)) == [1]

    def test_a_new_leader_finds_the_environment_of_an_action_that_runs_before_its_row(self) -> None:
        """The queued one must not invent another environment while the first one's row is being written."""
        held = a_held_action(Fence(numbered(1), 1), trajectory="a", environment=numbered(100))
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=[a_queued_row(2, trajectory="a", persistent=True)], held=[held]))
        index.release_attempts([held.fence])
        (second,) = a_round(index)
        assert second.environment == numbered(100)

    def test_a_new_leader_knows_who_is_busy(self) -> None:
        environment = uuid4()
        held = a_held_action(Fence(numbered(1), 1), trajectory="x", environment=environment)
        queued = [a_queued_row(2, trajectory="x", persistent=True)]
        index = SchedulerIndex()
        index.reconcile(a_poll(queued=queued, held=[held], environments=[an_environment_row(environment)]))
        assert a_round(index) == ()
        index.release_attempts([held.fence])
        assert [(grant.environment, grant.node) for grant in a_round(index)] == [(environment, 1)]


class LeaderAndRows(RuleBasedStateMachine):
    """Whatever happens to rows and hints, polls make the index what a new leader would build from rows."""

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
        """By its node, after a deletion that also cancels what waits for it; or without anybody's wish."""
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
        stranded = self.index.environments.stranded_actions()
        for id in stranded:
            self.rows.rows[id].state = ActionState.SETTLED
        self.index.drop_refused(stranded)

    @rule()
    def compare(self) -> None:
        """Two polls: the first confirms or forgets environments that no poll has seen yet."""
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
        """What nobody has made yet has no name that counts."""
        return (environment.id if environment.id in self.rows.environments else None), environment.node


TestLeaderAndRows = LeaderAndRows.TestCase
TestLeaderAndRows.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, database=None)
