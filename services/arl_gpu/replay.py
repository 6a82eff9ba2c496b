"""Requests at their times through the manager's own loop and a worker, without the system around them.

`python -m arl_gpu.replay`: a `Replay` as JSON on standard input, a `Replayed` on standard output. A benchmark compares
ways to choose who leaves a device with it: the same requests, the same model, only the policy differs.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from arl_core.eviction import Eviction
from arl_gpu.kinds.model import Item
from arl_gpu.services import available
from arl_gpu.timed import Asked, Timed, Watched
from arl_gpu.turns import Turns
from arl_gpu.worker import Config

__all__ = ["Replay", "Replayed", "replay"]

LIMIT_S = 600.0
BEGUN_TOKENS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """`requests`: when, of which service, and its items. Each of `services` is a separate copy of `model`."""

    model: str
    services: Sequence[str]
    requests: Sequence[tuple[float, str, Sequence[tuple[str, str]]]]
    device_mib: int
    copy_mib_per_s: float | None
    eviction: str
    swap_wait_s: float
    batch_tokens: int
    threads: int = 1


@dataclass(slots=True)
class Replayed:
    """Of each request, in order: from its time until its scores were there, and those."""

    wait_s: list[float]
    scores: list[list[float | None]]
    lost: int = 0
    restored_s: list[float] = field(default_factory=list)
    evicted: int = 0
    prefetched: int = 0


async def replay(asked: Replay) -> Replayed:
    """Raises `LookupError` where the model is not installed."""
    files = next(iter(available([asked.model])), None)
    if files is None:
        raise LookupError(f"{asked.model} is not installed")
    config = Config(
        services={name: files.spec | {"name": name} for name in asked.services},
        device_mib=asked.device_mib,
        copy_mib_per_s=asked.copy_mib_per_s,
        eviction=Eviction(asked.eviction),
    )
    return await _replayed(asked, Watched(config, threads=asked.threads, limit_s=LIMIT_S))


async def _replayed(asked: Replay, worker: Watched) -> Replayed:
    """Every service is in host memory before the first request."""
    for name in asked.services:
        await worker.restore(name)
    worker.forget_moves()
    limits = {"batch_tokens": asked.batch_tokens, "begun_tokens": BEGUN_TOKENS}
    timed = Timed(dict.fromkeys(asked.services, worker), lambda: Turns(swap_wait_s=asked.swap_wait_s, **limits))
    ended = await timed.run([Asked(at, service, _items(pairs)) for at, service, pairs in asked.requests])
    return Replayed(
        wait_s=[each.wait_s for each in ended],
        scores=[each.scores for each in ended],
        lost=sum(not each.is_ok for each in ended),
        restored_s=worker.restored_s,
        evicted=worker.evicted,
        prefetched=worker.prefetched,
    )


def _items(pairs: Sequence[tuple[str, str]]) -> list[Item]:
    return [{"text": text, "reference": reference} for text, reference in pairs]


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(replay(Replay(**json.load(sys.stdin))))), sys.stdout)
