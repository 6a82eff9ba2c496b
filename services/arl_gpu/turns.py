"""Whose items go to the device next. Knows no time and no device."""

from collections.abc import Iterator, Sequence

from arl_core.batching import next_batch
from arl_core.fence import Fence
from arl_gpu.jobs import Job

__all__ = ["Batch", "Turns"]

Batch = Sequence[tuple[Job, int]]
"""Actions, and how many of the next items of each."""


class Turns:
    """Jobs in the order in which they head a batch; costs are in tokens.

    Whoever was served goes behind all others, so each that may begin is in one of the next N batches, N being how many
    jobs there are. One that is no larger than a batch may begin at once. Larger ones begin in their order, while what
    is left of all that began is at most `begun_tokens`, or alone: the time of one that waits does not run.
    """

    def __init__(self, *, batch_tokens: int, begun_tokens: int) -> None:
        self._batch_tokens, self._begun_tokens = batch_tokens, begun_tokens
        self._jobs: dict[Fence, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __contains__(self, fence: Fence) -> bool:
        return fence in self._jobs

    def get(self, fence: Fence) -> Job | None:
        return self._jobs.get(fence)

    def add(self, job: Job) -> None:
        self._jobs[job.fence] = job

    def remove(self, fence: Fence) -> Job | None:
        """None where it is gone already."""
        return self._jobs.pop(fence, None)

    def next_batch(self) -> Batch:
        """Of one service, that of the first job; never empty. Raises where no job has an item left."""
        ready = self._ready()
        jobs = [job for job in ready if job.service == ready[0].service]
        counts = next_batch([job.left for job in jobs], budget=self._batch_tokens)
        batch = [(job, count) for job, count in zip(jobs, counts, strict=True) if count]
        if not batch:
            raise RuntimeError("jobs wait of which nothing is left")
        for job, _ in batch:
            self._jobs[job.fence] = self._jobs.pop(job.fence)
        return batch

    def _ready(self) -> list[Job]:
        """Those that have begun or may begin."""
        left = sum(sum(job.left) for job in self if job.has_begun)
        found, is_full = [], False
        for job in self:
            if not job.has_begun and (cost := sum(job.costs)) > self._batch_tokens:
                is_full = is_full or bool(left and left + cost > self._begun_tokens)
                if is_full:
                    continue
                left += cost
            found.append(job)
        return found
