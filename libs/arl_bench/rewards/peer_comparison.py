"""A benchmark of scores per second compared with other servers of the same forward, one item per call, same client.

The servers run alternately, ours before each of the others. Each has one model worker with the same number of threads,
and every text is scored once per run. No server caches scores, so each run has the same texts. The rate of our
preceding run is divided by the peer's, so that other load on the machine affects both. `over_best_*` is the smallest
of these ratios over all peers and batch sizes.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.process_usage import own_cpu_s, tree_pss_mib
from arl_bench.rewards.peer_servers import InstalledPeer, PeerName, install_peer, running_peer
from arl_bench.rewards.peer_texts import LengthDistribution, text_pair
from arl_bench.rewards.reward_overhead import MAX_ERROR, SERVICE, TASK, TOLERANCE, RewardBenchConfig, score_directly
from arl_wire.errors import Unavailable

__all__ = ["run_reward_peers"]

OUR_NAME = "tangram"
WARM_UP_NUMBER = 1 << 32
"""Numbers of items from here on are not measured."""


@dataclass(frozen=True, slots=True)
class _RewardServer:
    """A server with its address, its request format and its resource usage."""

    name: str
    url: str
    headers: Mapping[str, str]
    body: Callable[[tuple[str, str]], Any]
    score: Callable[[Any], float]
    cpu_s: Callable[[], float]
    memory_mib: Callable[[], float]


@dataclass(slots=True)
class _ServerRun:
    """The result of one server in one run."""

    scores: dict[int, float | None]
    """Score by item number; None if there was no response."""
    wall_s: float
    cpu_s: float
    client_s: float
    memory_mib: float

    @property
    def done(self) -> int:
        return sum(score is not None for score in self.scores.values())

    @property
    def per_s(self) -> float:
        return self.done / self.wall_s

    def cpu_ms(self, seconds: float) -> float:
        """Convert CPU seconds to milliseconds per score."""
        return 1000 * seconds / max(1, self.done)


_RunKey = tuple[str, LengthDistribution]


@dataclass(slots=True)
class _PeerResults:
    """Results by server and lengths. `unavailable` has the reason for each peer that could not run."""

    runs: dict[_RunKey, list[_ServerRun]] = field(default_factory=dict)
    ratios: dict[_RunKey, list[float]] = field(default_factory=dict)
    """Rate of our preceding run divided by the peer's rate."""
    unavailable: dict[str, str] = field(default_factory=dict)

    def samples(self) -> dict[str, Any]:
        rows = {
            f"{name}_{lengths}": [_to_sample(turn) for turn in turns] for (name, lengths), turns in self.runs.items()
        }
        return rows | {"absent": self.unavailable}


def run_reward_peers(
    config: RewardBenchConfig, names: list[PeerName], directory: Path, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the comparison on a separate system. Return figures and samples."""
    found = _PeerResults()
    peers = list(_install_peers(names, directory, found, report_progress))
    with bench_system(driver="simulated", environment={"TANGRAM_DEVICE_THREADS": str(config.threads)}) as system:
        for repeat in range(config.repeats):
            for peer in peers:
                report_progress(f"repeat {repeat + 1} of {config.repeats}, beside {peer.name}")
                for batch in peer.batches:
                    _measure_pair(found, _our_server(system), peer, batch, config)
    for name, why in found.unavailable.items():
        report_progress(f"{name} is absent: {why}")
    report_progress("the same items without any server")
    return _figures(found), found.samples()


def _install_peers(
    names: list[PeerName], directory: Path, results: _PeerResults, report_progress: Callable[[str], None]
) -> Iterator[InstalledPeer]:
    for name in names:
        report_progress(f"{name}, installed where it is not yet")
        try:
            yield install_peer(name, directory)
        except Unavailable as error:
            results.unavailable[name] = str(error)


def _measure_pair(
    results: _PeerResults, ours: _RewardServer, peer: InstalledPeer, batch: int, config: RewardBenchConfig
) -> None:
    name = f"{peer.name}_{batch}"
    before = _measure_server(results, ours, config)
    try:
        with running_peer(peer, service=SERVICE, batch=batch, threads=config.threads) as up:
            theirs = _measure_server(
                results, _RewardServer(name, up.url, {}, _peer_body, _peer_score, up.cpu_s, up.memory_mib), config
            )
    except Unavailable as error:
        results.unavailable[name] = str(error)
        return
    for lengths in LengthDistribution:
        if theirs[lengths].done:
            results.ratios.setdefault((name, lengths), []).append(before[lengths].per_s / theirs[lengths].per_s)


def _measure_server(
    results: _PeerResults, server: _RewardServer, config: RewardBenchConfig
) -> dict[LengthDistribution, _ServerRun]:
    taken = {lengths: asyncio.run(_run_server(server, lengths, config)) for lengths in LengthDistribution}
    for lengths, turn in taken.items():
        results.runs.setdefault((server.name, lengths), []).append(turn)
    return taken


def _our_server(system: BenchSystem) -> _RewardServer:
    key = (system.directory / "api_key").read_text()
    return _RewardServer(
        OUR_NAME,
        f"{system.service_url('gateway')}/v1/scores",
        {"Authorization": f"Bearer {key}"},
        _our_body,
        _our_score,
        lambda: sum(system.cpu_s().values()),
        lambda: tree_pss_mib(system.pid),
    )


def _our_body(item_pair: tuple[str, str]) -> Any:
    return {"service": SERVICE, "task": TASK, "items": [{"text": item_pair[0], "reference": item_pair[1]}]}


def _our_score(answer: Any) -> float:
    return float(answer["scores"][0]["score"])


def _peer_body(item_pair: tuple[str, str]) -> Any:
    return {"query": [item_pair[0]], "prompts": [item_pair[1]]}


def _peer_score(answer: Any) -> float:
    return float(answer["rewards"][0])


async def _run_server(server: _RewardServer, lengths: LengthDistribution, config: RewardBenchConfig) -> _ServerRun:
    """Measure a server. First, each client makes a call that opens connections and initialises the server."""
    numbers, scores = itertools.count(), dict[int, float | None]()
    connector = aiohttp.TCPConnector(limit=config.clients)
    async with aiohttp.ClientSession(connector=connector, headers=server.headers) as session:
        await asyncio.gather(
            *(_request_score(session, server, lengths, WARM_UP_NUMBER + at) for at in range(config.clients))
        )
        cpu, own, begun = server.cpu_s(), own_cpu_s(), time.monotonic()

        async def ask_again_and_again() -> None:
            while time.monotonic() - begun < config.seconds:
                number = next(numbers)
                scores[number] = await _request_score(session, server, lengths, number)

        await asyncio.gather(*(ask_again_and_again() for _ in range(config.clients)))
        wall_s, own_s, used_s = time.monotonic() - begun, own_cpu_s() - own, server.cpu_s() - cpu
    return _ServerRun(scores, wall_s, used_s, own_s, server.memory_mib())


async def _request_score(
    session: aiohttp.ClientSession, server: _RewardServer, lengths: LengthDistribution, number: int
) -> float | None:
    """Request a score. Return None for any response without a score."""
    body = json.dumps(server.body(text_pair(lengths, number)))
    try:
        async with session.post(server.url, data=body, headers={"Content-Type": "application/json"}) as reply:
            return server.score(json.loads(await reply.read())) if reply.ok else None
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        return None


def _figures(results: _PeerResults) -> dict[str, float]:
    errors, turns = list(_errors(results)), results.runs
    figures = {
        "max_abs_error_peers": max(errors, default=MAX_ERROR),
        "wrong_answers_peers": float(sum(error > TOLERANCE for error in errors)),
        "lost_peers": float(sum(len(turn.scores) - turn.done for taken in turns.values() for turn in taken)),
    }
    for (name, lengths), ratios in results.ratios.items():
        figures[f"over_{name}_{lengths}"] = over = round(median(ratios), 3)
        best = f"over_best_{lengths}"
        figures[best] = min(over, figures.get(best, over))
    for (name, lengths), taken in turns.items():
        suffix = f"{name}_{lengths}"
        figures[f"scores_per_s_{suffix}"] = round(median(turn.per_s for turn in taken), 2)
        figures[f"cpu_ms_{suffix}"] = round(median(turn.cpu_ms(turn.cpu_s) for turn in taken), 3)
        figures[f"memory_mib_{suffix}"] = round(median(turn.memory_mib for turn in taken), 1)
    return figures


def _errors(results: _PeerResults) -> Iterator[float]:
    """Yield the absolute error of every score."""
    for lengths in LengthDistribution:
        given = [turn.scores for (_, of), taken in results.runs.items() if of is lengths for turn in taken]
        right = score_directly({number: text_pair(lengths, number) for scores in given for number in scores})
        for number, score in (each for scores in given for each in scores.items()):
            wanted = right[number]
            if score is not None:
                yield abs(score - wanted) if wanted is not None else MAX_ERROR


def _to_sample(run: _ServerRun) -> dict[str, float]:
    return {
        "done": run.done,
        "wall_s": round(run.wall_s, 3),
        "per_s": round(run.per_s, 2),
        "cpu_ms_each": round(run.cpu_ms(run.cpu_s), 3),
        "client_cpu_ms_each": round(run.cpu_ms(run.client_s), 3),
        "memory_mib": round(run.memory_mib, 1),
    }
