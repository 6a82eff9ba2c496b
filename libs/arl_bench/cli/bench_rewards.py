"""`bench`: benchmarks of reward services and of device sharing."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from arl_bench.harness.report import print_report
from arl_bench.rewards import device_sharing as sharing_
from arl_bench.rewards import residency as residency_
from arl_bench.rewards import reward_overhead as reward_
from arl_bench.rewards import weight_restore as copies_
from arl_bench.rewards.peer_servers import PeerName, peers_directory
from arl_tangram.cli.output import EXIT_FAILED, EXIT_USAGE, JsonOption, fail, print_progress
from arl_wire.errors import TangramError

__all__ = ["register"]


def register(group: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (reward, residency, restore, sharing):
        group.command()(command)


def reward(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Number of measurements.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds of each measurement.")] = 10,
    clients: Annotated[int, typer.Option(min=1, help="Concurrent clients.")] = 32,
    items: Annotated[int, typer.Option(min=1, max=256, help="Items per call of the second measurement.")] = 32,
    peers: Annotated[bool, typer.Option("--peers", help="Also measure all other servers.")] = False,
    peer: Annotated[list[PeerName] | None, typer.Option(help="Also measure this server; repeatable.")] = None,
    peers_dir: Annotated[
        Path | None, typer.Option(help="Directory of the other servers; default ~/.cache/tangram/peers.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a forward pass, if compared with others.")] = 1,
) -> None:
    """Measure scores per second and the overhead per score, with one item and with many items per call.

    Uses its own system.
    """
    from arl_bench.rewards import peer_comparison

    sizes = reward_.RewardBenchConfig(repeats=repeats, seconds=seconds, clients=clients, items=items, threads=threads)
    names = list(PeerName) if peers else peer or []
    try:
        figures, samples = reward_.run_reward_overhead(sizes, print_progress)
        if names:
            beside, found = peer_comparison.run_reward_peers(
                sizes, names, peers_dir or peers_directory(), print_progress
            )
            figures, samples = figures | beside, samples | found
    except TangramError as error:
        fail(str(error))
    load = asdict(sizes) | {"peers": names}
    print_report("reward", as_json=as_json, load=load, figures=figures, samples=samples, repeats=repeats)
    if any(count for name, count in figures.items() if name.startswith(("wrong_answers", "lost"))):
        raise typer.Exit(EXIT_FAILED)


def residency(
    as_json: JsonOption = False,
    short: Annotated[bool, typer.Option("--short", help="Run once for 15 s.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each policy.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of requests per strategy.")] = 30,
) -> None:
    """Count weight copies if a device fits 3 of 12 reward services, compared with least-recently-used eviction."""
    sizes = (
        residency_.ResidencyBenchConfig(repeats=1, seconds=3, burst_s=2) if short else residency_.ResidencyBenchConfig()
    )
    if not short:
        sizes = replace(sizes, repeats=repeats, seconds=seconds)
    try:
        figures, samples = residency_.run_residency(sizes, print_progress)
    except TangramError as error:
        fail(str(error))
    print_report(
        "residency", as_json=as_json, load=asdict(sizes), figures=figures, samples=samples, repeats=sizes.repeats
    )
    if figures["wrong_answers"] or figures["lost"]:
        raise typer.Exit(EXIT_FAILED)


def restore(
    as_json: JsonOption = False,
    device: Annotated[str, typer.Option(help="Device: cuda:N or cpu.")] = "cuda:0",
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each size.")] = 5,
    small_mib: Annotated[int, typer.Option(min=1, help="Size of the small model in MiB.")] = copies_.SMALL_MIB,
    large_mib: Annotated[int, typer.Option(min=1, help="Size of the large model in MiB.")] = copies_.LARGE_MIB,
) -> None:
    """Load and evict synthetic weights, compared with a plain copy: GB/s, eviction, time to the first score."""
    sizes = copies_.WeightRestoreBenchConfig(device=device, repeats=repeats, small_mib=small_mib, large_mib=large_mib)
    try:
        figures, samples = copies_.run_weight_restore(sizes, print_progress)
    except TangramError as error:
        fail(str(error))
    print_report("restore", as_json=as_json, load=asdict(sizes), figures=figures, samples=samples, repeats=repeats)


def sharing(
    as_json: JsonOption = False,
    device: Annotated[str, typer.Option(help="Device: cuda:N or cpu.")] = "cuda:0",
    strategy: Annotated[
        list[str] | None, typer.Option(help="Run only this strategy (keep, sleep, reload, share); repeatable.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each strategy.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of requests per strategy.")] = 40,
    room: Annotated[
        float, typer.Option(min=0.01, max=1, help="Fraction of all weights that fits on the device.")
    ] = 0.5,
    directory: Annotated[
        Path | None, typer.Option(help="Directory on a real disk for the weights that are reloaded.")
    ] = None,
) -> None:
    """Run 12 services of 0.6 to 8 billion parameters on one device, and compare the sharing strategies.

    The strategies are ours, sleeping, reloading and fixed shares.
    """
    strategies = tuple(strategy or sharing_.STRATEGIES)
    if unknown := set(strategies) - set(sharing_.STRATEGIES):
        allowed = ", ".join(sharing_.STRATEGIES)
        fail(f"--strategy: unknown value {', '.join(sorted(unknown))}. Allowed: {allowed}", EXIT_USAGE)
    sizes = sharing_.DeviceSharingBenchConfig(
        device=device, strategies=strategies, repeats=repeats, seconds=seconds, room=room
    )
    if directory is not None:
        sizes = replace(sizes, directory=str(directory))
    try:
        figures, samples = sharing_.run_device_sharing(sizes, print_progress)
    except TangramError as error:
        fail(str(error))
    load = sharing_.report_load(sizes)
    print_report("sharing", as_json=as_json, load=load, figures=figures, samples=samples, repeats=repeats)
    if figures["wrong_answers"] or figures["lost"]:
        raise typer.Exit(EXIT_FAILED)
