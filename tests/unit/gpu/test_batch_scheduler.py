"""The order in which items reach the device over many batches."""

from itertools import count
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from arl_core.domain.model import Fence
from arl_gpu.queue.batch_scheduler import Batch, BatchPart, BatchScheduler, DeviceState
from arl_gpu.queue.score_jobs import ScoreJob

HERE = DeviceState()
COSTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=8)


def a_job(costs: list[int], service: str = "minilm") -> ScoreJob:
    return ScoreJob(
        fence=Fence(uuid4(), 1),
        service=service,
        timeout_s=1.0,
        items=[{"text": "a", "reference": "b"}] * len(costs),
        costs=list(costs),
    )


def turns_of(*jobs: ScoreJob, batch_tokens: int = 2048, max_inflight_tokens: int = 1 << 20) -> BatchScheduler:
    turns = BatchScheduler(batch_tokens=batch_tokens, max_inflight_tokens=max_inflight_tokens)
    for job in jobs:
        turns.add(job)
    return turns


def computed(turns: BatchScheduler, batch: Batch) -> None:
    for job, _, _ in batch:
        job.started_at = 0.0
        if not job.remaining_costs:
            turns.remove(job.fence)


def test_short_action_is_not_delayed_by_many_large_actions() -> None:
    short = a_job([512])
    turns = turns_of(*(a_job([512] * 256) for _ in range(4)), short)
    first, second = turns.next_batch(HERE), turns.next_batch(HERE)
    assert (len(first), short in [job for job, _, _ in first]) == (4, False)
    assert second[0] == (short, 0, 1)


def test_large_action_waits_at_inflight_limit_unlike_short_action() -> None:
    large, waits, short = a_job([10] * 9), a_job([10] * 9), a_job([10])
    turns = turns_of(large, batch_tokens=20, max_inflight_tokens=100)
    computed(turns, turns.next_batch(HERE))
    turns.add(waits)
    turns.add(short)
    computed(turns, turns.next_batch(HERE))
    assert (short.remaining_costs, waits.has_started) == ([], False)
    while not waits.has_started:
        was_left = sum(large.remaining_costs)
        computed(turns, turns.next_batch(HERE))
    assert was_left <= 10


@given(COSTS, st.integers(1, 100), st.integers(1, 300))
def test_ready_job_is_served_within_one_batch_per_job(
    costs: list[list[int]], batch_tokens: int, max_inflight_tokens: int
) -> None:
    jobs = [a_job(each, service="minilm" if at % 3 else "other") for at, each in enumerate(costs)]
    turns = turns_of(*jobs, batch_tokens=batch_tokens, max_inflight_tokens=max_inflight_tokens)
    waits = dict.fromkeys((job.fence for job in jobs), 0)
    begun_large: list[ScoreJob] = []
    clock = count(1.0)
    while turns:
        batch = turns.next_batch(HERE, now=next(clock))
        assert len({job.service for job, _, _ in batch}) == 1
        served = {job.fence for job, _, _ in batch}
        for job in turns:
            is_ready = job.has_started or sum(job.costs) <= batch_tokens
            waits[job.fence] = 0 if job.fence in served or not is_ready else waits[job.fence] + 1
            assert waits[job.fence] < len(jobs)
        begun_large += [job for job, _, _ in batch if not job.has_started and sum(job.costs) > batch_tokens]
        computed(turns, batch)
    for service in ("minilm", "other"):
        of_it = [job for job in jobs if sum(job.costs) > batch_tokens and job.service == service]
        assert [job for job in begun_large if job.service == service] == of_it


@given(COSTS, st.integers(1, 100), st.integers(1, 300))
def test_large_actions_in_flight_stay_within_token_limit(
    costs: list[list[int]], batch_tokens: int, max_inflight_tokens: int
) -> None:
    jobs = [a_job(each) for each in costs if sum(each) > batch_tokens]
    turns = turns_of(*jobs, batch_tokens=batch_tokens, max_inflight_tokens=max_inflight_tokens)
    while turns:
        batch = turns.next_batch(HERE)
        ready = {job.fence: job for job in jobs if job.has_started} | {job.fence: job for job, _, _ in batch}
        left = {fence: sum(job.remaining_costs) for fence, job in ready.items()}
        left |= {job.fence: sum(job.costs[start:]) for job, start, _ in batch}
        assert len([each for each in left.values() if each]) == 1 or sum(left.values()) <= max_inflight_tokens
        computed(turns, batch)


class TestModelSwaps:
    """Two services share a device; one is resident and in use, and neither waits for ever."""

    HERE = DeviceState(resident=("here",), fitting=())

    def turns(self, *waiting: tuple[float, str]) -> BatchScheduler:
        """Return a scheduler in which «here» ran a batch at 0 and the given jobs arrived at their times."""
        turns = BatchScheduler(batch_tokens=10, max_inflight_tokens=100, model_swap_delay_s=5.0)
        turns.add(a_job([10], "here"), now=0.0)
        turns.next_batch(self.HERE, now=0.0)
        for came, service in waiting:
            turns.add(a_job([10], service), now=came)
        return turns

    def served(self, turns: BatchScheduler, *at: float) -> list[str]:
        return [job.service for now in at for job, _, _ in turns.next_batch(self.HERE, now=now)]

    def test_resident_service_runs_before_a_restore(self) -> None:
        turns = self.turns((1.0, "away"), (2.0, "here"), (2.0, "away"), (3.0, "here"))
        assert self.served(turns, 5.5, 5.5, 6.0) == ["here", "here", "away"]

    def test_service_past_its_wait_limit_runs_all_its_jobs_first(self) -> None:
        turns = self.turns((1.0, "away"), (2.0, "here"), (5.5, "away"))
        assert turns.waiting_services(self.HERE, now=6.0) == ["away", "here"]
        assert self.served(turns, 6.0, 6.0, 6.0) == ["away", "away", "here"]

    def test_resident_service_is_not_evicted_before_swap_delay(self) -> None:
        turns = self.turns((1.0, "away"), (4.0, "here"))
        assert self.served(turns, 4.0) == ["here"]
        assert turns.next_check_at(self.HERE, now=4.0) == 6.0
        assert (turns.waiting_services(self.HERE, now=5.9), self.served(turns, 5.9)) == ([], [])
        assert self.served(turns, 6.0) == ["away"]

    def test_many_waiting_jobs_shorten_the_swap_delay(self) -> None:
        turns = self.turns(*[(1.0, "away")] * 4, (3.4, "here"))
        assert self.served(turns, 3.4) == ["here"]
        assert turns.next_check_at(self.HERE, now=3.4) == 3.5
        assert self.served(turns, 3.5) == ["away"]

    def test_swap_is_immediate_with_free_memory_or_idle_service(self) -> None:
        assert self.turns((1.0, "away")).next_batch(DeviceState(resident=("here",), fitting=("away",)), now=1.0)
        assert self.turns((1.0, "away")).next_batch(DeviceState(fitting=()), now=1.0)
        assert self.served(self.turns((5.0, "away")), 5.0) == ["away"]

    def test_service_on_another_device_is_loaded_only_for_much_work(self) -> None:
        turns, place = self.turns((1.0, "away"), (1.0, "here")), DeviceState(replicas_elsewhere={"away": 1, "here": 1})
        assert turns.next_batch(place, now=5.9) == []
        turns.add(a_job([10] * 3, "here"), now=5.9)
        assert turns.next_batch(place, now=5.9)[0].job.service == "here"


def test_service_on_another_device_is_loaded_after_swap_delay() -> None:
    turns = BatchScheduler(batch_tokens=100, max_inflight_tokens=1000, model_swap_delay_s=5.0)
    turns.add(a_job([10]), now=0.0)
    place = DeviceState(replicas_elsewhere={"minilm": 1})
    assert not turns.next_batch(place, now=4.9)
    assert turns.next_batch(place, now=5.0)


def test_split_and_whole_service_alternate_without_swap_per_batch() -> None:
    turns = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000, model_swap_delay_s=1.0)
    members = {"split": (0, 1)}
    leads = DeviceState(number=0, members=members, blocked={"whole"})
    follows = DeviceState(number=1, members=members, blocked={"split"})

    def begins(place: DeviceState, at: float) -> list[str]:
        return [job.service for job, _, _ in turns.next_batch(place, now=at)]

    for service in ("whole", "whole", "split", "split"):
        turns.add(a_job([10], service), now=0.0)
    assert begins(follows, 1.0) == ["whole"]
    assert begins(leads, 1.1) == [], "jobs that already waited for the other device go first"
    assert begins(follows, 1.2) == ["whole"]
    assert begins(leads, 1.3) == ["split"]
    turns.add(a_job([10], "whole"), now=1.4)
    assert begins(follows, 1.5) == [], "the device takes part in the other device's split batch"
    assert begins(leads, 1.6) == ["split"]
    assert begins(follows, 1.7) == ["whole"]


def test_split_service_waits_while_its_load_would_evict_used_service() -> None:
    turns = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000, model_swap_delay_s=1.0)
    leads = DeviceState(
        number=0, members={"split": (0, 1)}, resident_on_group={"split": {"whole"}}, fitting=(), blocked={"whole"}
    )
    user, waits = a_job([10], "whole"), a_job([10], "split")
    turns.add(user, now=0.0)
    turns.add(waits, now=0.0)
    assert turns.next_batch(leads, now=0.1) == []
    assert turns.next_check_at(leads, now=0.1) == 1.0
    assert [job for job, _, _ in turns.next_batch(leads, now=1.0)] == [waits]


class TestTimedBatches:
    """The size of a batch is the work of 0.1 s on the device, but at least `batch_tokens`."""

    def turns(self, *jobs: ScoreJob, max_inflight_tokens: int = 10_000) -> BatchScheduler:
        turns = BatchScheduler(
            batch_tokens=20, max_inflight_tokens=max_inflight_tokens, model_swap_delay_s=60.0, batch_s=0.1
        )
        for job in jobs:
            turns.add(job)
        return turns

    def sizes(
        self, turns: BatchScheduler, tokens_per_s: float, count: int = 12, place: DeviceState = HERE
    ) -> list[int]:
        found = []
        for _ in range(count):
            batch = turns.next_batch(place)
            tokens = sum(sum(job.costs[start:stop]) for job, start, stop in batch)
            computed(turns, batch)
            turns.record_duration(batch, place.number, tokens / tokens_per_s)
            found.append(tokens)
        return found

    def of_320(self, *others: ScoreJob) -> BatchScheduler:
        """Return a scheduler that has learnt batches of 320 tokens and contains only the given jobs."""
        turns = self.turns(a_job([1] * 5000))
        assert self.sizes(turns, 3200, 7) == [20, 40, 80, 160, 320, 320, 320]
        self.instead(turns, *others)
        return turns

    def instead(self, turns: BatchScheduler, *jobs: ScoreJob) -> None:
        """Replace all waiting jobs by the given ones."""
        for each in [*turns]:
            turns.remove(each.fence)
        for job in jobs:
            turns.add(job)

    def test_batch_size_follows_device_speed(self) -> None:
        turns = self.of_320(a_job([1] * 5000))
        assert self.sizes(turns, 800, 3) == [320, 80, 80]
        assert self.sizes(turns, 20, 2) == [80, 20]

    def test_batch_size_is_capped_by_inflight_tokens_and_growth_limit(self) -> None:
        assert self.sizes(self.turns(a_job([1] * 1000), max_inflight_tokens=50), 1e9, 4) == [20, 40, 50, 50]
        assert self.sizes(self.turns(a_job([1] * 5000)), 1e9, 8)[-2:] == [320, 320]

    def test_small_batch_changes_budget_only_if_it_is_slow(self) -> None:
        turns, alone = self.of_320(a_job([1] * 5000)), [BatchPart(a_job([1]), 0, 1)]
        turns.record_duration(alone, 0, 0.09)
        assert self.sizes(turns, 3200, 1) == [320]
        turns.record_duration(alone, 0, 9.0)
        assert self.sizes(turns, 3200, 2) == [160, 320]

    def test_batch_budget_is_learnt_per_service_and_device(self) -> None:
        turns = self.turns(a_job([1] * 600), a_job([1] * 600, "other"))
        assert [self.sizes(turns, 1e9, 1) for _ in range(4)] == [[20], [20], [40], [40]]
        assert self.sizes(turns, 1e9, 1, DeviceState(number=1)) == [20]

    def test_batch_budget_restarts_after_failure_or_eviction(self) -> None:
        turns = self.of_320(a_job([1] * 5000))
        turns.record_failure(turns.next_batch(HERE), 1)
        assert self.sizes(turns, 3200, 1) == [320]
        turns.record_failure(turns.next_batch(HERE), 0)
        assert self.sizes(turns, 3200, 2) == [20, 40]
        turns.forget_budgets_except({"minilm"}, 0)
        turns.forget_budgets_except({"other"}, 1)
        assert self.sizes(turns, 3200, 1) == [80]
        turns.forget_budgets_except({"other"}, 0)
        assert self.sizes(turns, 3200, 1) == [20]

    def test_device_leaves_shares_of_queue_to_other_replicas(self) -> None:
        turns = self.of_320(a_job([1] * 180))
        assert turns.next_batch(DeviceState(resident={"minilm"}, replicas_elsewhere={"minilm": 2}))[0].items == 60
        turns = self.of_320(a_job([1] * 180))
        pairs = DeviceState(resident={"minilm"}, replicas_elsewhere={"minilm": 2}, members={"minilm": (0, 1)})
        assert turns.next_batch(pairs)[0].items == 90, "the two devices elsewhere form one group"

    def test_second_replica_is_loaded_if_work_fills_several_batches(self) -> None:
        elsewhere = DeviceState(number=1, replicas_elsewhere={"minilm": 1}, fitting=())
        for tokens, is_made in ((1279, False), (1280, True)):
            assert bool(self.of_320(a_job([1] * tokens)).next_batch(elsewhere)) == is_made

    def test_second_replica_is_loaded_despite_low_inflight_limit(self) -> None:
        elsewhere = DeviceState(number=1, replicas_elsewhere={"minilm": 1}, fitting=())
        for tokens, is_made in ((299, False), (300, True)):
            turns = self.turns(a_job([1] * 3000), max_inflight_tokens=600)
            self.sizes(turns, 1e9, 8)
            self.instead(turns, a_job([1] * tokens))
            assert bool(turns.next_batch(elsewhere)) == is_made


def test_jobs_of_blocked_service_do_not_delay_other_services() -> None:
    """A failed engine blocks its service for an unlimited time."""
    begun, judged = a_job([10] * 9, "judge"), [a_job([10] * 9, "judge") for _ in range(3)]
    turns = turns_of(begun, *judged, batch_tokens=20, max_inflight_tokens=100)
    computed(turns, turns.next_batch(HERE))
    waits = a_job([10] * 9)
    turns.add(waits)
    place = DeviceState(resident={"minilm"}, blocked={"judge"}, fitting=set())
    assert turns.next_batch(place) == [(waits, 0, 2)]


def test_large_jobs_of_absent_service_yield_to_resident_service() -> None:
    cold, hot = [a_job([10] * 9, "cold") for _ in range(3)], a_job([10] * 9)
    turns = BatchScheduler(batch_tokens=20, max_inflight_tokens=100, model_swap_delay_s=1.5)
    for job in (*cold, hot):
        turns.add(job, now=1.0)
    assert turns.next_batch(DeviceState(resident={"minilm"}, fitting=set()), now=1.0) == [(hot, 0, 2)]


def test_large_job_starts_despite_continuous_work_of_another_service() -> None:
    turns, large = (
        BatchScheduler(batch_tokens=100, max_inflight_tokens=1000, model_swap_delay_s=1.5),
        a_job([100] * 6, "large"),
    )
    place = DeviceState(resident={"large", "stream"}, fitting=set())
    for tick in range(100):
        if tick == 20:
            turns.add(large, now=tick / 10)
        while sum(not job.has_started for job in turns if job is not large) < 4:
            turns.add(a_job([100] * 3, "stream"), now=tick / 10)
        computed(turns, turns.next_batch(place, now=tick / 10))
    assert large.has_started
