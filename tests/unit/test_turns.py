"""Whose items go to the device next, over many batches."""

from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from arl_core.fence import Fence
from arl_gpu.jobs import Job
from arl_gpu.turns import Batch, Turns

COSTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=12), min_size=1, max_size=8)


def a_job(costs: list[int], service: str = "minilm") -> Job:
    return Job(
        fence=Fence(uuid4(), 1),
        service=service,
        timeout_s=1.0,
        items=[{"text": "a", "reference": "b"}] * len(costs),
        costs=list(costs),
    )


def turns_of(*jobs: Job, batch_tokens: int = 2048, begun_tokens: int = 1 << 20) -> Turns:
    turns = Turns(batch_tokens=batch_tokens, begun_tokens=begun_tokens)
    for job in jobs:
        turns.add(job)
    return turns


def computed(turns: Turns, batch: Batch) -> None:
    for job, count in batch:
        job.begun = 0.0
        job.entries += [{}] * count
        if not job.left:
            turns.remove(job.fence)


def test_a_short_action_is_not_behind_large_ones_that_fill_every_batch() -> None:
    short = a_job([512])
    turns = turns_of(*(a_job([512] * 256) for _ in range(4)), short)
    first, second = turns.next_batch(), turns.next_batch()
    assert (len(first), short in [job for job, _ in first]) == (4, False)
    assert second[0] == (short, 1)


def test_a_large_one_waits_while_as_much_as_may_begin_has_begun_and_short_ones_do_not() -> None:
    large, waits, short = a_job([10] * 9), a_job([10] * 9), a_job([10])
    turns = turns_of(large, batch_tokens=20, begun_tokens=100)
    computed(turns, turns.next_batch())
    turns.add(waits)
    turns.add(short)
    computed(turns, turns.next_batch())
    assert (short.left, waits.has_begun) == ([], False)
    while not waits.has_begun:
        was_left = sum(large.left)
        computed(turns, turns.next_batch())
    assert was_left <= 10


@given(COSTS, st.integers(1, 100), st.integers(1, 300))
def test_each_that_began_or_is_short_is_served_within_as_many_batches_as_there_are_jobs(
    costs: list[list[int]], batch_tokens: int, begun_tokens: int
) -> None:
    jobs = [a_job(each, service="minilm" if at % 3 else "other") for at, each in enumerate(costs)]
    turns = turns_of(*jobs, batch_tokens=batch_tokens, begun_tokens=begun_tokens)
    waits = dict.fromkeys((job.fence for job in jobs), 0)
    begun_large: list[Job] = []
    while turns:
        batch = turns.next_batch()
        assert len({job.service for job, _ in batch}) == 1
        served = {job.fence for job, _ in batch}
        for job in turns:
            is_ready = job.has_begun or sum(job.costs) <= batch_tokens
            waits[job.fence] = 0 if job.fence in served or not is_ready else waits[job.fence] + 1
            assert waits[job.fence] < len(jobs)
        begun_large += [job for job, _ in batch if not job.has_begun and sum(job.costs) > batch_tokens]
        computed(turns, batch)
    assert begun_large == [job for job in jobs if sum(job.costs) > batch_tokens]


@given(COSTS, st.integers(1, 100), st.integers(1, 300))
def test_of_large_ones_no_more_begins_than_may(costs: list[list[int]], batch_tokens: int, begun_tokens: int) -> None:
    jobs = [a_job(each) for each in costs if sum(each) > batch_tokens]
    turns = turns_of(*jobs, batch_tokens=batch_tokens, begun_tokens=begun_tokens)
    while turns:
        batch = turns.next_batch()
        ready = {job.fence: job for job in jobs if job.has_begun} | {job.fence: job for job, _ in batch}
        live = [job for job in ready.values() if job.left]
        assert len(live) == 1 or sum(sum(job.left) for job in live) <= begun_tokens
        computed(turns, batch)
