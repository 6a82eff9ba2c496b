"""Scores a second beside servers of others around the same forward: one item a call, by the same client.

They take turns, ours before each of the others; each has one model worker of as many threads, and every text is scored
once in a turn. Nobody keeps scores, so each turn has the same texts. What ours did in the turn before is divided by
what the other did: neighbours on the machine hit both. `over_best_*` is the least of these ratios, whichever other and
whichever of its batches it comes from.
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

from arl_tangram.bench.cpu_time import own_cpu_s
from arl_tangram.bench.memory import tree_mib
from arl_tangram.bench.own_system import OwnSystem, own_system
from arl_tangram.bench.peer_servers import Installed, PeerName, installed, running
from arl_tangram.bench.peer_texts import Lengths, pair
from arl_tangram.bench.reward import MOST_WRONG, SERVICE, TASK, TOLERANCE, Sizes, direct
from arl_wire.errors import Unavailable

__all__ = ["run_peers"]

OURS = "tangram"
WARM = 1 << 32
"""Numbers of items from here on are not measured."""


@dataclass(frozen=True, slots=True)
class _Server:
    """Where it answers, how it is asked for one item, and what it has used."""

    name: str
    url: str
    headers: Mapping[str, str]
    body: Callable[[tuple[str, str]], Any]
    score: Callable[[Any], float]
    cpu_s: Callable[[], float]
    memory_mib: Callable[[], float]


@dataclass(slots=True)
class _Turn:
    """What one server did in one turn."""

    scores: dict[int, float | None]
    """By number of item; None where there was no answer."""
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
        """Of each score."""
        return 1000 * seconds / max(1, self.done)


_Key = tuple[str, Lengths]


@dataclass(slots=True)
class _Found:
    """By server and lengths. A peer that could not be had is in `absent`, with the reason."""

    turns: dict[_Key, list[_Turn]] = field(default_factory=dict)
    ratios: dict[_Key, list[float]] = field(default_factory=dict)
    """Ours just before, divided by the peer's."""
    absent: dict[str, str] = field(default_factory=dict)

    def samples(self) -> dict[str, Any]:
        rows = {
            f"{name}_{lengths}": [_rounded(turn) for turn in turns] for (name, lengths), turns in self.turns.items()
        }
        return rows | {"absent": self.absent}


def run_peers(
    sizes: Sizes, names: list[PeerName], directory: Path, say: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures and samples, on a system of its own."""
    found = _Found()
    peers = list(_installed(names, directory, found, say))
    with own_system(driver="simulated", environment={"TANGRAM_DEVICE_THREADS": str(sizes.threads)}) as system:
        for repeat in range(sizes.repeats):
            for peer in peers:
                say(f"repeat {repeat + 1} of {sizes.repeats}, beside {peer.name}")
                for batch in peer.batches:
                    _take_both(found, _ours(system), peer, batch, sizes)
    for name, why in found.absent.items():
        say(f"{name} is absent: {why}")
    say("the same items without any server")
    return _figures(found), found.samples()


def _installed(
    names: list[PeerName], directory: Path, found: _Found, say: Callable[[str], None]
) -> Iterator[Installed]:
    for name in names:
        say(f"{name}, installed where it is not yet")
        try:
            yield installed(name, directory)
        except Unavailable as error:
            found.absent[name] = str(error)


def _take_both(found: _Found, ours: _Server, peer: Installed, batch: int, sizes: Sizes) -> None:
    name = f"{peer.name}_{batch}"
    before = _take(found, ours, sizes)
    try:
        with running(peer, service=SERVICE, batch=batch, threads=sizes.threads) as up:
            theirs = _take(found, _Server(name, up.url, {}, _reward_body, _reward, up.cpu_s, up.memory_mib), sizes)
    except Unavailable as error:
        found.absent[name] = str(error)
        return
    for lengths in Lengths:
        if theirs[lengths].done:
            found.ratios.setdefault((name, lengths), []).append(before[lengths].per_s / theirs[lengths].per_s)


def _take(found: _Found, server: _Server, sizes: Sizes) -> dict[Lengths, _Turn]:
    taken = {lengths: asyncio.run(_turn(server, lengths, sizes)) for lengths in Lengths}
    for lengths, turn in taken.items():
        found.turns.setdefault((server.name, lengths), []).append(turn)
    return taken


def _ours(system: OwnSystem) -> _Server:
    key = (system.directory / "api_key").read_text()
    return _Server(
        OURS,
        f"{system.url_of('gateway')}/v1/scores",
        {"Authorization": f"Bearer {key}"},
        _our_body,
        _our_score,
        lambda: sum(system.cpu_s().values()),
        lambda: tree_mib(system.pid),
    )


def _our_body(given: tuple[str, str]) -> Any:
    return {"service": SERVICE, "task": TASK, "items": [{"text": given[0], "reference": given[1]}]}


def _our_score(answer: Any) -> float:
    return float(answer["scores"][0]["score"])


def _reward_body(given: tuple[str, str]) -> Any:
    return {"query": [given[0]], "prompts": [given[1]]}


def _reward(answer: Any) -> float:
    return float(answer["rewards"][0])


async def _turn(server: _Server, lengths: Lengths, sizes: Sizes) -> _Turn:
    """A call of each client before, so that connections are open and what is made at the first call is there."""
    numbers, scores = itertools.count(), dict[int, float | None]()
    connector = aiohttp.TCPConnector(limit=sizes.clients)
    async with aiohttp.ClientSession(connector=connector, headers=server.headers) as session:
        await asyncio.gather(*(_asked(session, server, lengths, WARM + at) for at in range(sizes.clients)))
        cpu, own, begun = server.cpu_s(), own_cpu_s(), time.monotonic()

        async def ask_again_and_again() -> None:
            while time.monotonic() - begun < sizes.seconds:
                number = next(numbers)
                scores[number] = await _asked(session, server, lengths, number)

        await asyncio.gather(*(ask_again_and_again() for _ in range(sizes.clients)))
        wall_s, own_s, used_s = time.monotonic() - begun, own_cpu_s() - own, server.cpu_s() - cpu
    return _Turn(scores, wall_s, used_s, own_s, server.memory_mib())


async def _asked(session: aiohttp.ClientSession, server: _Server, lengths: Lengths, number: int) -> float | None:
    """None for anything that is no score."""
    body = json.dumps(server.body(pair(lengths, number)))
    try:
        async with session.post(server.url, data=body, headers={"Content-Type": "application/json"}) as reply:
            return server.score(json.loads(await reply.read())) if reply.ok else None
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        return None


def _figures(found: _Found) -> dict[str, float]:
    errors, turns = list(_errors(found)), found.turns
    figures = {
        "max_abs_error_peers": max(errors, default=MOST_WRONG),
        "wrong_answers_peers": float(sum(error > TOLERANCE for error in errors)),
        "lost_peers": float(sum(len(turn.scores) - turn.done for taken in turns.values() for turn in taken)),
    }
    for (name, lengths), ratios in found.ratios.items():
        figures[f"over_{name}_{lengths}"] = over = round(median(ratios), 3)
        best = f"over_best_{lengths}"
        figures[best] = min(over, figures.get(best, over))
    for (name, lengths), taken in turns.items():
        suffix = f"{name}_{lengths}"
        figures[f"scores_per_s_{suffix}"] = round(median(turn.per_s for turn in taken), 2)
        figures[f"cpu_ms_{suffix}"] = round(median(turn.cpu_ms(turn.cpu_s) for turn in taken), 3)
        figures[f"memory_mib_{suffix}"] = round(median(turn.memory_mib for turn in taken), 1)
    return figures


def _errors(found: _Found) -> Iterator[float]:
    """Of every score that there is."""
    for lengths in Lengths:
        given = [turn.scores for (_, of), taken in found.turns.items() if of is lengths for turn in taken]
        right = direct({number: pair(lengths, number) for scores in given for number in scores})
        for number, score in (each for scores in given for each in scores.items()):
            wanted = right[number]
            if score is not None:
                yield abs(score - wanted) if wanted is not None else MOST_WRONG


def _rounded(turn: _Turn) -> dict[str, float]:
    return {
        "done": turn.done,
        "wall_s": round(turn.wall_s, 3),
        "per_s": round(turn.per_s, 2),
        "cpu_ms_each": round(turn.cpu_ms(turn.cpu_s), 3),
        "client_cpu_ms_each": round(turn.cpu_ms(turn.client_s), 3),
        "memory_mib": round(turn.memory_mib, 1),
    }
