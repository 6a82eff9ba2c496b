"""What a score costs beside its forward: through the gateway, durable, one item a call and many.

`single` and `batch` by the call that waits for its scores, which goes with others as one action; `action` by an action
for each. `single_light` and `batch_light` ask a service whose forward is the length of a text: what the way there and
back costs where no slow model keeps the rate, and with it what goes together, low.

The forward's CPU time is the worker's own; all else that the system used is overhead, the client's apart: making tokens
of texts too, which any server of this model does and which is also given by itself. Every score is compared with that
of a forward without the system.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import httpx

from arl_core.states import Outcome
from arl_tangram.bench.cpu_time import own_cpu_s
from arl_tangram.bench.light import score
from arl_tangram.bench.own_system import OwnSystem, own_system
from arl_tangram.client import AsyncTangram
from arl_tangram.rewards import score_action
from arl_wire.actions import Action
from arl_wire.errors import Unavailable

__all__ = ["MOST_WRONG", "SERVICE", "TASK", "TOLERANCE", "Sizes", "direct", "run_reward"]

SERVICE = "minilm"
TASK = "reward"
TOLERANCE = 1e-4
MOST_WRONG = 2.0
"""Of two cosines."""
Asked = Coroutine[Any, Any, "_Answer | None"]
FORWARD, MODEL = "tangram_gpu_forward_cpu_seconds_total", "tangram_gpu_model_cpu_seconds_total"
LIGHT = "light"
CALLABLES = json.dumps({LIGHT: "arl_tangram.bench.light:score"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of each."""

    repeats: int = 3
    seconds: float = 10.0
    clients: int = 32
    items: int = 32
    """In one call of the second measurement."""
    threads: int = 1
    """Of a forward, beside servers of others."""


@dataclass(frozen=True, slots=True)
class _Answer:
    first: int
    """Number of its first item; the others follow."""
    scores: list[float | None]


@dataclass(slots=True)
class _Rate:
    """Items that were scored in some time, and what they cost."""

    answers: list[_Answer]
    asked: int
    wall_s: float
    cpu_s: dict[str, float]
    forward_s: float
    tokens_s: float
    """CPU time of the model but for its forward."""

    @property
    def done(self) -> int:
        return sum(len(answer.scores) for answer in self.answers)

    @property
    def overhead_ms(self) -> float:
        system = sum(seconds for name, seconds in self.cpu_s.items() if name != "client")
        return 1000 * (system - self.forward_s) / self.done

    def of_each(self, seconds: float) -> float:
        """Milliseconds."""
        return 1000 * seconds / self.done


def run_reward(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures and samples, on a system of its own."""
    with own_system(driver="simulated", environment={"TANGRAM_CALLABLES": CALLABLES}) as system:
        rows = asyncio.run(_measure(system, sizes, say))
    say("the same items without the system")
    return _figures(rows), {name: [_rounded(rate) for rate in rates] for name, rates in rows.items()}


async def _measure(system: OwnSystem, sizes: Sizes, say: Callable[[str], None]) -> dict[str, list[_Rate]]:
    rows: dict[str, list[_Rate]] = {}
    ways: tuple[tuple[str, Callable[..., Asked], int], ...] = (
        ("single", partial(_call, SERVICE), 1),
        ("batch", partial(_call, SERVICE), sizes.items),
        ("action", _act, 1),
        ("single_light", partial(_call, LIGHT), 1),
        ("batch_light", partial(_call, LIGHT), sizes.items),
    )
    numbers = itertools.count()
    async with system.client() as client:
        if SERVICE not in {service.name for service in await client.services()}:
            raise Unavailable(f"this machine has no {SERVICE}; `tangram doctor` says how to get it")
        await asyncio.gather(*(_call(SERVICE, client, next(numbers), 1) for _ in range(sizes.clients)))
        for repeat in range(sizes.repeats):
            say(f"repeat {repeat + 1} of {sizes.repeats}")
            for name, ask, items in ways:
                rows.setdefault(name, []).append(await _rate(system, partial(ask, client), sizes, numbers, items))
    return rows


async def _rate(
    system: OwnSystem, ask: "partial[Asked]", sizes: Sizes, numbers: "itertools.count[int]", items: int
) -> _Rate:
    before, (forward, model), own, begun = system.cpu_s(), await _computed_s(system), own_cpu_s(), time.monotonic()
    ends_at = begun + sizes.seconds

    async def ask_again_and_again() -> tuple[int, list[_Answer]]:
        asked, found = 0, []
        while time.monotonic() < ends_at:
            first, *_ = [next(numbers) for _ in range(items)]
            asked += items
            if (answer := await ask(first, items)) is not None:
                found.append(answer)
        return asked, found

    parts = await asyncio.gather(*(ask_again_and_again() for _ in range(sizes.clients)))
    wall_s, used_by_client = time.monotonic() - begun, own_cpu_s() - own
    after = system.cpu_s()
    used = {name: after[name] - before.get(name, 0.0) for name in after} | {"client": used_by_client}
    answers = [answer for _, found in parts for answer in found]
    forward_s, model_s = (now - was for now, was in zip(await _computed_s(system), (forward, model), strict=True))
    return _Rate(answers, sum(asked for asked, _ in parts), wall_s, used, forward_s, model_s - forward_s)


async def _call(service: str, client: AsyncTangram, first: int, items: int) -> _Answer | None:
    """By the call that waits for its scores; None where there were none."""
    try:
        scores = await client.score(service, [_pair(first + at) for at in range(items)], task=TASK)
    except Unavailable:
        return None
    return _Answer(first, [score.score for score in scores])


async def _act(client: AsyncTangram, first: int, items: int) -> _Answer | None:
    """By an action of its own; None where it was lost or ended otherwise."""
    action: Action = await client.run(score_action(SERVICE, [_pair(first + at) for at in range(items)], task=TASK))
    if action.outcome is not Outcome.OK or action.result is None or action.result.scores is None:
        return None
    return _Answer(first, [score.score for score in action.result.scores])


async def _computed_s(system: OwnSystem) -> tuple[float, float]:
    """CPU time of all forwards so far, and of the models that made them."""
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"{system.url_of('gpu')}/metrics")).raise_for_status().text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines)
    return float(found.get(FORWARD, 0.0)), float(found.get(MODEL, 0.0))


def _pair(number: int) -> tuple[str, str]:
    """No two are alike, so that each is computed."""
    return f"Question {number}: the sum of both terms is {7 * number + 3}.", f"{7 * number + 3} is the right answer."


def direct(pairs: Mapping[int, tuple[str, str]]) -> dict[int, float | None]:
    """The score of each by the service's forward alone, in a process of its own. Raises `Unavailable`."""
    command = [sys.executable, "-P", "-m", "arl_gpu.direct", SERVICE]
    asked = json.dumps(list(pairs.values()))
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(done.stderr.strip())
    return dict(zip(pairs, json.loads(done.stdout), strict=True))


def _figures(rows: dict[str, list[_Rate]]) -> dict[str, float]:
    rates = [rate for found in rows.values() for rate in found]
    answered = _answered(rate for name, found in rows.items() if LIGHT not in name for rate in found)
    light = _answered(rate for name, found in rows.items() if LIGHT in name for rate in found)
    right = direct({number: _pair(number) for number in answered})
    errors = [_error(score, right[number]) for number, score in answered.items()]
    errors += [_error(found, score({"text": _pair(number)[0]})) for number, found in light.items()]
    figures = {
        "max_abs_error": max(errors, default=MOST_WRONG),
        "wrong_answers": float(sum(error > TOLERANCE for error in errors)),
        "lost": float(sum(rate.asked - rate.done for rate in rates)),
    }
    for name, found in rows.items():
        figures[f"scores_per_s_{name}"] = round(median(rate.done / rate.wall_s for rate in found), 3)
        figures[f"overhead_cpu_ms_{name}"] = round(median(rate.overhead_ms for rate in found), 3)
        figures[f"forward_cpu_ms_{name}"] = round(median(rate.of_each(rate.forward_s) for rate in found), 3)
        figures[f"tokens_cpu_ms_{name}"] = round(median(rate.of_each(rate.tokens_s) for rate in found), 3)
        figures[f"client_cpu_ms_{name}"] = round(median(rate.of_each(rate.cpu_s["client"]) for rate in found), 3)
    return figures


def _answered(rates: Iterable[_Rate]) -> dict[int, float | None]:
    """By the number of the item."""
    return {
        answer.first + at: score for rate in rates for answer in rate.answers for at, score in enumerate(answer.scores)
    }


def _error(score: float | None, right: float | None) -> float:
    """What should be a score and is none is as wrong as can be."""
    return abs(score - right) if score is not None and right is not None else MOST_WRONG


def _rounded(rate: _Rate) -> Any:
    cpu = {name: round(rate.of_each(seconds), 4) for name, seconds in rate.cpu_s.items()}
    cpu |= {"forward": round(rate.of_each(rate.forward_s), 4), "tokens": round(rate.of_each(rate.tokens_s), 4)}
    return {"done": rate.done, "wall_s": round(rate.wall_s, 3), "cpu_ms_each": cpu}
