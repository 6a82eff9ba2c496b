"""A benchmark of the overhead of a score through the gateway, durable, with one item per call and with many.

`single` and `batch` use the call that waits for its scores; concurrent calls share an action. `action` uses one action
per item. `single_light` and `batch_light` call a service whose forward is the length of a text. They show the overhead
if no slow model limits the rate and thereby the number of combined calls.

The forward's CPU time is measured by the worker. All other CPU time of the system is overhead; the client's is
separate. The overhead includes tokenisation, which any server of this model needs and which is also reported
separately. Every score is compared with a forward without the system.
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

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.process_usage import own_cpu_s
from arl_bench.rewards.noop_reward import score
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.resources.reward_services import score_action
from arl_wire.actions.action import Action
from arl_wire.errors import Unavailable

__all__ = ["MAX_ERROR", "SERVICE", "TASK", "TOLERANCE", "RewardBenchConfig", "run_reward_overhead", "score_directly"]

SERVICE = "minilm"
TASK = "reward"
TOLERANCE = 1e-4
MAX_ERROR = 2.0
"""Maximum difference of two cosines."""
ScoreCall = Coroutine[Any, Any, "_ScoreBatch | None"]
FORWARD_METRIC, MODEL_METRIC = "tangram_gpu_forward_cpu_seconds_total", "tangram_gpu_model_cpu_seconds_total"
NOOP_SERVICE = "light"
REWARD_FUNCTIONS = json.dumps({NOOP_SERVICE: "arl_bench.rewards.noop_reward:score"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBenchConfig:
    """Sizes of the measurements."""

    repeats: int = 3
    seconds: float = 10.0
    clients: int = 32
    items: int = 32
    """Number of items per call in the second measurement."""
    threads: int = 1
    """Threads of a forward in comparisons with other servers."""


@dataclass(frozen=True, slots=True)
class _ScoreBatch:
    first: int
    """Number of the first item; the others follow."""
    scores: list[float | None]


@dataclass(slots=True)
class _RewardRate:
    """Scored items in a period, and their cost."""

    batches: list[_ScoreBatch]
    requested: int
    wall_s: float
    cpu_s: dict[str, float]
    forward_s: float
    tokenizer_s: float
    """CPU seconds of the model without its forward."""

    @property
    def done(self) -> int:
        return sum(len(answer.scores) for answer in self.batches)

    @property
    def overhead_ms(self) -> float:
        system = sum(seconds for name, seconds in self.cpu_s.items() if name != "client")
        return 1000 * (system - self.forward_s) / self.done

    def per_item_ms(self, seconds: float) -> float:
        """Convert seconds to milliseconds per item."""
        return 1000 * seconds / self.done


def run_reward_overhead(
    config: RewardBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the benchmark on a separate system. Return figures and samples."""
    with bench_system(driver="simulated", environment={"TANGRAM_REWARD_FUNCTIONS": REWARD_FUNCTIONS}) as system:
        rows = asyncio.run(_measure(system, config, report_progress))
    report_progress("the same items without the system")
    return _figures(rows), {name: [_to_sample(rate) for rate in rates] for name, rates in rows.items()}


async def _measure(
    system: BenchSystem, config: RewardBenchConfig, report_progress: Callable[[str], None]
) -> dict[str, list[_RewardRate]]:
    rows: dict[str, list[_RewardRate]] = {}
    ways: tuple[tuple[str, Callable[..., ScoreCall], int], ...] = (
        ("single", partial(_score_by_call, SERVICE), 1),
        ("batch", partial(_score_by_call, SERVICE), config.items),
        ("action", _score_by_action, 1),
        ("single_light", partial(_score_by_call, NOOP_SERVICE), 1),
        ("batch_light", partial(_score_by_call, NOOP_SERVICE), config.items),
    )
    numbers = itertools.count()
    async with system.client() as client:
        if SERVICE not in {service.name for service in await client.reward_services()}:
            raise Unavailable(f"this machine has no {SERVICE}; `tangram doctor` says how to get it")
        await asyncio.gather(*(_score_by_call(SERVICE, client, next(numbers), 1) for _ in range(config.clients)))
        for repeat in range(config.repeats):
            report_progress(f"repeat {repeat + 1} of {config.repeats}")
            for name, ask, items in ways:
                rows.setdefault(name, []).append(
                    await _measure_rate(system, partial(ask, client), config, numbers, items)
                )
    return rows


async def _measure_rate(
    system: BenchSystem,
    score_batch: "partial[ScoreCall]",
    config: RewardBenchConfig,
    numbers: "itertools.count[int]",
    items: int,
) -> _RewardRate:
    before, (forward, model), own, begun = system.cpu_s(), await _model_cpu_s(system), own_cpu_s(), time.monotonic()
    ends_at = begun + config.seconds

    async def ask_again_and_again() -> tuple[int, list[_ScoreBatch]]:
        asked, found = 0, []
        while time.monotonic() < ends_at:
            first, *_ = [next(numbers) for _ in range(items)]
            asked += items
            if (answer := await score_batch(first, items)) is not None:
                found.append(answer)
        return asked, found

    parts = await asyncio.gather(*(ask_again_and_again() for _ in range(config.clients)))
    wall_s, used_by_client = time.monotonic() - begun, own_cpu_s() - own
    after = system.cpu_s()
    used = {name: after[name] - before.get(name, 0.0) for name in after} | {"client": used_by_client}
    answers = [answer for _, found in parts for answer in found]
    forward_s, model_s = (now - was for now, was in zip(await _model_cpu_s(system), (forward, model), strict=True))
    return _RewardRate(answers, sum(asked for asked, _ in parts), wall_s, used, forward_s, model_s - forward_s)


async def _score_by_call(service: str, client: AsyncTangram, first: int, items: int) -> _ScoreBatch | None:
    """Score with the call that waits for its scores. Return None if there were none."""
    try:
        scores = await client.score(service, [_make_pair(first + at) for at in range(items)], task=TASK)
    except Unavailable:
        return None
    return _ScoreBatch(first, [score.score for score in scores])


async def _score_by_action(client: AsyncTangram, first: int, items: int) -> _ScoreBatch | None:
    """Score with a separate action. Return None if it was lost or did not succeed."""
    action: Action = await client.run(score_action(SERVICE, [_make_pair(first + at) for at in range(items)], task=TASK))
    if action.outcome is not ActionOutcome.OK or action.result is None or action.result.scores is None:
        return None
    return _ScoreBatch(first, [score.score for score in action.result.scores])


async def _model_cpu_s(system: BenchSystem) -> tuple[float, float]:
    """Return the CPU seconds of all forwards, and of the models including their forwards."""
    lines = (await system.read_metrics("gpu")).splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines)
    return float(found.get(FORWARD_METRIC, 0.0)), float(found.get(MODEL_METRIC, 0.0))


def _make_pair(number: int) -> tuple[str, str]:
    """Return a unique pair, so that each is computed."""
    return f"Question {number}: the sum of both terms is {7 * number + 3}.", f"{7 * number + 3} is the right answer."


def score_directly(pairs: Mapping[int, tuple[str, str]]) -> dict[int, float | None]:
    """Score each pair with the service's forward alone, in a separate process. Raises `Unavailable`."""
    command = [sys.executable, "-P", "-m", "arl_bench.gpu.direct_scores", SERVICE]
    asked = json.dumps(list(pairs.values()))
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(done.stderr.strip())
    return dict(zip(pairs, json.loads(done.stdout), strict=True))


def _figures(rows: dict[str, list[_RewardRate]]) -> dict[str, float]:
    rates = [rate for found in rows.values() for rate in found]
    answered = _scores_by_item(rate for name, found in rows.items() if NOOP_SERVICE not in name for rate in found)
    light = _scores_by_item(rate for name, found in rows.items() if NOOP_SERVICE in name for rate in found)
    right = score_directly({number: _make_pair(number) for number in answered})
    errors = [_abs_error(found, right[number]) for number, found in answered.items()]
    errors += [_abs_error(found, score({"text": _make_pair(number)[0]})) for number, found in light.items()]
    figures = {
        "max_abs_error": max(errors, default=MAX_ERROR),
        "wrong_answers": float(sum(error > TOLERANCE for error in errors)),
        "lost": float(sum(rate.requested - rate.done for rate in rates)),
    }
    for name, found in rows.items():
        figures[f"scores_per_s_{name}"] = round(median(rate.done / rate.wall_s for rate in found), 3)
        figures[f"overhead_cpu_ms_{name}"] = round(median(rate.overhead_ms for rate in found), 3)
        figures[f"forward_cpu_ms_{name}"] = round(median(rate.per_item_ms(rate.forward_s) for rate in found), 3)
        figures[f"tokens_cpu_ms_{name}"] = round(median(rate.per_item_ms(rate.tokenizer_s) for rate in found), 3)
        figures[f"client_cpu_ms_{name}"] = round(median(rate.per_item_ms(rate.cpu_s["client"]) for rate in found), 3)
    return figures


def _scores_by_item(rates: Iterable[_RewardRate]) -> dict[int, float | None]:
    """Return scores by item number."""
    return {
        answer.first + at: score for rate in rates for answer in rate.batches for at, score in enumerate(answer.scores)
    }


def _abs_error(score: float | None, right: float | None) -> float:
    """Return the absolute error, or the maximum error if a score is missing."""
    return abs(score - right) if score is not None and right is not None else MAX_ERROR


def _to_sample(rate: _RewardRate) -> Any:
    cpu = {name: round(rate.per_item_ms(seconds), 4) for name, seconds in rate.cpu_s.items()}
    cpu |= {
        "forward": round(rate.per_item_ms(rate.forward_s), 4),
        "tokens": round(rate.per_item_ms(rate.tokenizer_s), 4),
    }
    return {"done": rate.done, "wall_s": round(rate.wall_s, 3), "cpu_ms_each": cpu}
