"""A benchmark of a neighbour under attack: latency of one client's `true` while others attack the gateway.

Each repeat measures the neighbour without an attack and then under each attack. An attack runs in a process of its own
with the lowest priority, and the benchmark fails if an attack does not take place.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

from arl_bench.control_plane import attack_load
from arl_bench.control_plane.attack_load import ATTACKS, BEGIN_LINE, AttackReport
from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.process_usage import pss_mib
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.errors import Unavailable

__all__ = ["AttackBenchConfig", "run_attacks"]

QUIET = "quiet"
TIMEOUT_S = 1.5
_PAUSE_S = 0.02
_WARM_UP_S = 2.0
_MEMORY_INTERVAL_S = 0.2
_STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackBenchConfig:
    """Sizes of the measurements."""

    repeats: int = 3
    seconds: float = 15.0
    """Seconds of each measurement."""


@dataclass(slots=True)
class _Phase:
    """Samples of the neighbour in all repeats of one attack."""

    seconds: list[float] = field(default_factory=list)
    outcomes: list[ActionOutcome | None] = field(default_factory=list)
    gateway_mib: list[float] = field(default_factory=list)
    attack: AttackReport = field(default_factory=AttackReport)

    @property
    def false_timeouts(self) -> int:
        return sum(outcome is ActionOutcome.USER_TIMEOUT for outcome in self.outcomes)


def run_attacks(
    config: AttackBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. Raises `Unavailable` if the system does not start or an attack fails."""
    with bench_system() as system:
        phases = asyncio.run(_measure(system, config, report_progress))
    return _figures(phases), {
        name: {
            "ms": [round(1000 * seconds, 3) for seconds in phase.seconds],
            "gateway_mib": [round(mib, 1) for mib in phase.gateway_mib],
        }
        for name, phase in phases.items()
    }


async def _measure(
    system: BenchSystem, config: AttackBenchConfig, report_progress: Callable[[str], None]
) -> dict[str, _Phase]:
    phases = {name: _Phase() for name in (QUIET, *ATTACKS)}
    async with system.client() as client:
        victim = (await client.environment(task="attacker", memory_mib=64)).id
        await client.run(_neighbour_action())
        key = (system.directory / "api_key").read_text().strip()
        for repeat in range(config.repeats):
            for name, phase in phases.items():
                report_progress(f"repeat {repeat + 1} of {config.repeats}: {name}")
                credentials = (key, str(victim)) if name == "archives" else ()
                with _attack(name, system, phase.attack, *credentials):
                    await _run_neighbour(client, system.process_pids()["gateway"], config.seconds, phase)
    return phases


@contextmanager
def _attack(name: str, system: BenchSystem, report: AttackReport, *credentials: str) -> Iterator[None]:
    """Attack the gateway and add the requests to the report. Raises `Unavailable` if the attack fails."""
    if name == QUIET:
        yield
        return
    address = urlsplit(system.service_url("gateway")).netloc
    with _attacker(name, address, *credentials) as attacker:
        assert attacker.stdout is not None
        if attacker.stdout.readline().strip() != BEGIN_LINE:
            raise Unavailable(f"attack '{name}' did not begin; its errors are above")
        time.sleep(_WARM_UP_S)
        yield
        exit_code = attacker.poll()
        if exit_code is not None:
            raise Unavailable(f"attack '{name}' ended early with exit code {exit_code}; its errors are above")
        attacker.terminate()
        done = AttackReport.from_json(attacker.communicate(timeout=_STOP_TIMEOUT_S)[0])
    if (fault := ATTACKS[name].fault(done)) is not None:
        raise Unavailable(f"attack '{name}' did not take place: {fault}")
    report += done


@contextmanager
def _attacker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", attack_load.__name__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as attacker:
        try:
            yield attacker
        finally:
            attacker.kill()


async def _run_neighbour(client: AsyncTangram, gateway: int, seconds: float, phase: _Phase) -> None:
    ends_at, next_look = time.monotonic() + seconds, 0.0
    while (begun := time.monotonic()) < ends_at:
        settled = await client.run(_neighbour_action())
        phase.seconds.append(time.monotonic() - begun)
        phase.outcomes.append(settled.outcome)
        if time.monotonic() > next_look:
            phase.gateway_mib.append(pss_mib(gateway))
            next_look = time.monotonic() + _MEMORY_INTERVAL_S
        await asyncio.sleep(_PAUSE_S)


def _neighbour_action() -> Any:
    return exec_action(task="neighbour", argv=["true"], memory_mib=64, cpu=0.5, timeout_s=TIMEOUT_S)


def _figures(phases: dict[str, _Phase]) -> dict[str, float]:
    quiet_p99 = _p99(phases[QUIET])
    figures: dict[str, float] = {}
    for name, phase in phases.items():
        figures[f"{name}_p50_ms"] = round(1000 * median(phase.seconds), 2)
        figures[f"{name}_p99_ms"] = round(1000 * _p99(phase), 2)
        figures[f"{name}_p99_over_quiet"] = round(_p99(phase) / quiet_p99, 3)
        figures[f"{name}_false_timeouts"] = float(phase.false_timeouts)
        figures[f"{name}_not_ok"] = float(sum(outcome is not ActionOutcome.OK for outcome in phase.outcomes))
        figures[f"{name}_gateway_max_mib"] = round(max(phase.gateway_mib), 1)
        if name != QUIET:
            figures[f"{name}_attacks"] = float(phase.attack.sent)
        for kind, count in sorted(phase.attack.responses.items()):
            figures[f"{name}_responses_{kind}"] = float(count)
    return figures


def _p99(phase: _Phase) -> float:
    return quantiles(phase.seconds, n=100)[98]
