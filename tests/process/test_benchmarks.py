"""Test that short forms of the benchmarks run and report their figures; speed is not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PEER = b"bench/peers/openrlhf_style.py"


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "arl_tangram.cli", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert {"name", "machine", "load", "versions", "repeats", "figures", "samples"} <= document.keys()
    return document


def content(path: Path) -> bytes:
    """Return the file's bytes, or nothing if its process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_overhead_bench_reports_rates_costs_and_idle_starts() -> None:
    document = bench("overhead", "--repeats", "1", "--seconds", "4", "--starts", "20")
    figures = document["figures"]
    rates = ("plain_exec_per_s", "tangram_exec_per_s", "tangram_exec_single_per_s", "tangram_noop_per_s")
    costs = ("client_cpu_ms", "cpu_ms_per_noop", "idle_submit_to_start_p50_ms", "idle_submit_to_start_p99_ms")
    assert all(figures[name] > 0 for name in (*rates, *costs))
    assert len(document["samples"]["start_ms"]) == 20
    used = document["samples"]["noop"][0]["cpu_ms_each"]
    assert {"client", "gateway", "admission", "scheduler", "cpu", "postgres"} <= used.keys()


def test_attacks_bench_reports_latency_and_the_requests_of_each_attack() -> None:
    figures = bench("attacks", "--repeats", "1", "--seconds", "2")["figures"]
    phases = ("quiet", "bodies", "connections", "archives")
    names = ("p50_ms", "p99_ms", "p99_over_quiet", "gateway_max_mib")
    assert all(figures[f"{phase}_{name}"] > 0 for phase in phases for name in names)
    assert all(figures[f"{phase}_attacks"] > 0 for phase in phases[1:])
    assert any(name.startswith("bodies_responses_") for name in figures)
    assert "quiet_attacks" not in figures


def test_soak_bench_reports_memory_tables_and_latency_over_time() -> None:
    document = bench("soak", "--actions", "5000")
    assert document["figures"]["actions"] == 5000
    assert document["figures"]["act_p99_last_over_first"] > 0
    last = document["samples"]["over_time"][-1]
    assert all(last[f"{name}_mib"] > 0 for name in ("gateway", "admission", "scheduler", "cpu", "table_actions"))


def test_cpu_allocation_bench_reports_cores_and_resize_delay() -> None:
    document = bench("cpu-allocation", "--repeats", "1", "--seconds", "0.5", "--resizes", "4", "--steps", "2")
    figures, samples = document["figures"], document["samples"]
    measured = [f"{whose}_at_{amount}" for whose in ("cores", "plain") for amount in ("half", "one")]
    assert all(figures[name] > 0 for name in (*measured, "resize_ms"))
    assert figures["use_follows_ms"] >= 0
    assert (len(samples["cores_at_half"]), len(samples["resize_ms"])) == (1, 4)
    assert document["load"]["plain_has"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_resize_bench_reports_oversubscribed_and_resized_tools() -> None:
    document = bench("resize", "--repeats", "1", "--work", "0.4", "--tool", "pool")
    figures, samples = document["figures"], document["samples"]
    ratios = (
        "two_on_one_wall_over_one",
        "two_on_one_cpu_over_one",
        "resized_wall_over_promised",
        "resized_cpu_over_two",
    )
    assert all(figures[f"pool_{name}"] > 0 for name in ratios)
    assert all(len(samples[f"wall_s_pool_{case}"]) == 1 for case in ("one", "two", "two_on_one", "resized"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_core_sharing_bench_reports_exclusive_actions_and_false_timeouts() -> None:
    options = ("--repeats", "1", "--shared", "4", "--seeds", "1", "--workload", "overload")
    document = bench("core-sharing", *options)
    figures = document["figures"]
    assert figures["exclusive_beside_4_ratio"] > 0
    assert 0 <= figures["control_fraction_of_node"] < 1
    assert figures["overload_limited"] > 10
    assert figures["overload_false_timeouts"] == 0
    assert len(document["samples"]["alone_s"]) == 1


def test_exec_bench_reports_rates_against_plain_processes_without_loss() -> None:
    figures = bench("exec", "--repeats", "1", "--seconds", "0.5", "--concurrency", "8")["figures"]
    programs = ("plain_true", "tangram_true", "plain_cold", "tangram_cold", "tangram_source", "api_true", "api_source")
    assert all(figures[f"{name}_per_s"] > 0 and figures[f"{name}_cpu_ms"] > 0 for name in programs)
    assert figures["lost_at_1000"] == figures["left_after_destroy"] == 0


def test_calls_bench_compares_shared_and_split_quotas_without_loss() -> None:
    document = bench("calls", "--short")
    figures, samples = document["figures"], document["samples"]
    ways = ("broker", "through", "backoff", "split")
    times = ("act_mean_s", "act_p50_s", "act_p99_s", "makespan_s", "slowdown_mean", "client_cpu_ms_call")
    assert all(figures[f"{name}_{way}"] > 0 for name in times for way in ways)
    assert all(0 < figures[f"quota_used_{way}"] <= 1 for way in ways)
    assert all(figures[f"cpu_ms_call_{way}"] > 0 and figures[f"failed_{way}"] == 0 for way in ("broker", "through"))
    assert all(figures[f"most_in_flight_{way}"] <= document["load"]["concurrency"] for way in ways)
    for way in ways:
        assert sum(samples[way][0]["requests_in_second"]) == figures[f"requests_{way}"] >= figures["calls"]


def test_reward_bench_compares_rates_with_forward_and_peer_server() -> None:
    sizes = ("--repeats", "1", "--seconds", "1", "--clients", "8", "--items", "4")
    document = bench("reward", *sizes, "--peer", "openrlhf")
    figures, samples = document["figures"], document["samples"]
    for form in ("single", "batch", "single_light", "batch_light"):
        costs = ("forward_cpu_ms", "tokens_cpu_ms", "client_cpu_ms")
        assert all(figures[f"{name}_{form}"] > 0 for name in ("scores_per_s", *costs))
        assert {"gpu", "gateway", "postgres", "forward"} <= samples[form][0]["cpu_ms_each"].keys()
    for lengths in ("uniform", "mixed"):
        assert figures[f"over_best_{lengths}"] == figures[f"over_openrlhf_1_{lengths}"] > 0
        assert all(figures[f"{name}_openrlhf_1_{lengths}"] > 0 for name in ("scores_per_s", "cpu_ms", "memory_mib"))
    assert figures["max_abs_error"] < 1e-4
    assert figures["max_abs_error_peers"] < 1e-4
    assert all(figures[name] == 0 for name in ("wrong_answers", "lost", "wrong_answers_peers", "lost_peers"))
    assert samples["absent"] == {}
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if PEER in content(path)]


def test_restore_bench_compares_restores_with_plain_copies() -> None:
    document = bench("restore", "--device", "cpu", "--small-mib", "8", "--large-mib", "40", "--repeats", "2")
    for size in ("0_6b", "8b"):
        names = ("restore_gb_per_s", "plain_gb_per_s", "restore_over_plain", "first_score_s", "evict_ms")
        assert all(document["figures"][f"{name}_{size}"] > 0 for name in names)
        assert len(document["samples"][size]["restore_s"]) == 2


def test_residency_bench_compares_policies_and_scores_correctly() -> None:
    figures = bench("residency", "--short")["figures"]
    assert all(figures[f"{name}{policy}"] > 0 for name in ("swaps", "p99_wait_s") for policy in ("", "_lru", "_fifo"))
    assert figures["max_abs_error"] < 1e-4
    assert figures["wrong_answers"] == figures["lost"] == 0


def test_sharing_bench_compares_ways_to_share_one_device() -> None:
    figures = bench("sharing", "--device", "cpu", "--seconds", "2")["figures"]
    ways = ("keep", "sleep", "reload", "share")
    assert all(figures[f"{name}_{way}"] > 0 for name in ("act_mean_s", "act_p99_s") for way in ways)
    assert figures["restores_share"] == figures["wrong_answers"] == figures["lost"] == 0


def test_environments_bench_reports_creations_forks_and_bursts() -> None:
    options = ("--repeats", "1", "--creations", "4", "--burst", "20", "--live", "20", "--forks", "2", "--no-peers")
    document = bench("environments", *options)
    figures = document["figures"]
    measured = ("create_first_command_p50_ms_c1", "create_first_command_p99_ms_c50", "fork_2_p50_ms", "burst_20_s")
    assert all(figures[name] > 0 for name in measured)
    assert (figures["burst_20_failed"], figures["live"]) == (0, 20)
    assert len(document["samples"]["create_first_command_c1_ms"]) == 4


def test_density_bench_reports_idle_environments_and_exec_latency() -> None:
    figures = bench("density", "--environments", "30", "--samples", "20", "--idle-s", "2")["figures"]
    assert all(figures[name] > 0 for name in ("mib_per_environment", "exec_p50_ratio", "create_per_s"))
    assert figures["idle_cores"] >= 0


def test_tracing_bench_compares_traced_and_untraced_noops() -> None:
    figures = bench("tracing", "--repeats", "1", "--seconds", "2")["figures"]
    assert all(figures[f"noop_per_s_{how}"] > 0 for how in ("traced", "untraced"))
    assert figures["traced_ratio"] > 0
    assert figures["spans_per_action_in_time"] > 1


def test_paper_bench_sim_compares_static_provisioning_and_policies() -> None:
    document = bench("paper", "--mode", "sim", "--short", "--level", "1")
    figures = document["figures"]
    contenders = ("static", "shrunk", "overcommitted", "unlimited", "fcfs", "reference", "spar", "spar_m", "tangram")
    assert all(figures[f"sim_r100_{each}_{name}_s"] > 0 for each in contenders for name in ("act", "step", "p99"))
    assert figures["sim_r100_spar_m_act_s"] < figures["sim_r100_fcfs_act_s"] < figures["sim_r100_static_act_s"]
    assert figures["sim_saving_cores"] >= 0.75
    assert figures["sim_saving_gpus"] >= 0.5
    assert 0.8 < figures["sim_bound_ratio"] < 1.5
    assert document["load"]["paper"]["act_gain"] == 4.3


def test_paper_bench_site_compares_policies_on_the_papers_nodes() -> None:
    document = bench("paper", "--mode", "site", "--short")
    figures = document["figures"]
    assert figures["site_coding_256_tangram_act_s"] < figures["site_coding_256_fixed_4_act_s"]
    assert figures["site_mopd_128_shared_9_act_s"] < figures["site_mopd_128_reference_10_act_s"]
    assert document["samples"]["paper"]["mopd_devices"] == {"static": 36, "elastic": 10}


def test_paper_bench_control_compares_the_control_plane_with_the_simulator() -> None:
    document = bench("paper", "--mode", "control", "--short")
    figures = document["figures"]
    assert all(figures[f"control_r100_{each}_{name}_s"] > 0 for each in ("fcfs", "spar_m") for name in ("act", "step"))
    assert 0.7 < figures["control_over_sim"] < 1.5
    assert document["load"]["compression"] <= 10
    assert all(run["actions"] == 16 for run in document["samples"]["runs"])


def test_paper_bench_real_compares_policies_on_local_cores() -> None:
    figures = bench("paper", "--mode", "real", "--short")["figures"]
    contenders = ("static", "spar_m")
    assert all(figures[f"real_x1_{each}_{name}_s"] > 0 for each in contenders for name in ("act", "step", "p99"))
    assert figures["real_wrong_rewards"] == 0


def test_rounds_bench_reports_decision_rate_and_index_rebuild_time() -> None:
    document = bench("rounds", "--short")
    figures = document["figures"]
    assert all(figures[f"{name}_3e4"] > 0 for name in ("round_p99_ms", "decisions_per_s", "rebuild_s"))
    assert document["samples"]["rebuild"]["known"] >= 27_000
