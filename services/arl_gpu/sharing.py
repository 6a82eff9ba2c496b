"""Several services of synthetic weights on one device, by each way to have them there, under the same requests.

`python -m arl_gpu.sharing`: a `Sharing` as JSON on standard input, a `Shared` on standard output. The product's own
loop and planner in every case; only what a restore and an eviction do differs, or that all are there at once.
"""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arl_gpu.synthetic import MIB, SharedConfig, Way
from arl_gpu.timed import Asked, Timed, Watched
from arl_gpu.turns import Turns
from arl_gpu.worker_client import WorkerDied

__all__ = ["Shared", "Sharing", "share"]

LIMIT_S = 900.0
COMMAND = (sys.executable, "-P", "-m", "arl_gpu.synthetic")
BATCH_TOKENS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """`mib`: of each service's weights. `requests`: when, of which, and how many tokens, in the order of their times.

    `directory`: where files may lie that are read anew, on a real disk.
    """

    mib: Mapping[str, int]
    requests: Sequence[tuple[float, str, int]]
    way: str
    device: str
    device_mib: int
    copy_mib_per_s: float | None
    swap_wait_s: float
    directory: str
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Of each request, in order, how long it took and what it found; and what came and went meanwhile."""

    act_s: list[float]
    scores: list[float | None]
    lost: int
    restored_s: list[float]
    evicted: int
    prepared_s: float
    """Until every service could be asked."""


async def share(asked: Sharing) -> Shared:
    """Raises `WorkerDied` where the device is not there, or has no room, and `OSError` where the disk has none."""
    _has_room(asked)
    way, begun = Way(asked.way), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tangram-sharing-", dir=asked.directory) as directory:
        workers = _workers(asked, way, Path(directory))
        try:
            for name, worker in workers.items():
                answer = await worker.restore(name)
                if "error" in answer:
                    raise WorkerDied(f"{name} did not come to the device: {answer['error']}: {answer['message']}")
                worker.forget_moves()
            prepared_s = time.monotonic() - begun
            longest = max((tokens for _, _, tokens in asked.requests), default=1)
            timed = Timed(workers, lambda: _turns(asked), max_tokens=longest)
            ended = await timed.run(
                [Asked(at, name, [_item(number, tokens)]) for number, (at, name, tokens) in enumerate(asked.requests)]
            )
        finally:
            await asyncio.gather(*(worker.end() for worker in set(workers.values())))
    return Shared(
        act_s=[each.wait_s for each in ended],
        scores=[each.scores[0] for each in ended],
        lost=sum(not each.is_ok for each in ended),
        restored_s=[took for worker in set(workers.values()) for took in worker.restored_s],
        evicted=sum(worker.evicted for worker in set(workers.values())),
        prepared_s=prepared_s,
    )


def _has_room(asked: Sharing) -> None:
    needed, free = sum(asked.mib.values()) * MIB, shutil.disk_usage(asked.directory).free
    if Way(asked.way) is Way.RELOAD and needed > free:
        raise OSError(f"{asked.directory} has {free // MIB} MiB free, and files of {needed // MIB} are to be read anew")


def _workers(asked: Sharing, way: Way, directory: Path) -> dict[str, Watched]:
    """One for all, or each its own with its share of the device."""
    shares = len(asked.mib) if way is Way.SHARE else 1
    options: dict[str, Any] = {"way": way, "shares": shares, "cuda": asked.device.startswith("cuda")}
    specs = {
        name: {
            "name": name,
            "kind": "synthetic",
            "directory": str(directory),
            "options": options | {"name": name, "seed": number, "mib": mib},
        }
        for number, (name, mib) in enumerate(asked.mib.items())
    }
    if way is Way.SHARE:
        return {name: _worker(asked, way, shares, {name: spec}, asked.mib[name]) for name, spec in specs.items()}
    return dict.fromkeys(specs, _worker(asked, way, shares, specs, asked.device_mib))


def _worker(asked: Sharing, way: Way, shares: int, specs: dict[str, dict[str, Any]], mib: int) -> Watched:
    config = SharedConfig(
        services=specs,
        device=asked.device,
        device_mib=mib,
        copy_mib_per_s=asked.copy_mib_per_s,
        way=way,
        shares=shares,
    )
    return Watched(config, threads=asked.threads, limit_s=LIMIT_S, command=COMMAND)


def _turns(asked: Sharing) -> Turns:
    return Turns(batch_tokens=BATCH_TOKENS, begun_tokens=8 * BATCH_TOKENS, swap_wait_s=asked.swap_wait_s)


def _item(number: int, tokens: int) -> dict[str, Any]:
    """The same for all ways."""
    return {"token_ids": np.random.default_rng(number).integers(0, 50_000, tokens).tolist()}


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(share(Sharing(**json.load(sys.stdin))))), sys.stdout)
