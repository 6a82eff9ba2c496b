"""Test the command line and curl against a system started by `tangram up`."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from uuid import UUID

import pytest

from arl_tangram import (
    ActionFailed,
    ActionOutcome,
    NotFound,
    ValidationFailed,
    WaitTimeout,
    exec_action,
    score_action,
    scores_of,
)
from arl_tangram.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_RUNNING, EXIT_USAGE
from arl_tangram.options import EnvironmentOptions
from support.builders import numbered
from support.conditions import eventually
from support.images import a_root, an_oci_layout, packed
from support.machine import Machine, a_machine


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with a_machine(tmp_path_factory.mktemp("cli") / "state") as machine:
        yield machine


class TestSimulate:
    @pytest.mark.slow
    def test_simulate_replays_a_recorded_trace(self, machine: Machine, tmp_path: Path) -> None:
        for _ in range(3):
            machine.cli("submit", "--task", "recorded", "--trajectory", "t1", "--", "sleep", "0.2")
        trace = tmp_path / "trace.jsonl"
        assert machine.cli("record", str(trace), "--task", "recorded").stdout.startswith("3 actions")
        simulated = json.loads(machine.cli("simulate", str(trace), "--policy", "fcfs", "-o", "json").stdout)
        assert simulated["policies"]["fcfs"]["actions"] == 3
        assert 0.2 < simulated["policies"]["fcfs"]["act"] < 0.4

    @pytest.mark.slow
    def test_replay_runs_recorded_trajectories_with_real_processes(self, machine: Machine, tmp_path: Path) -> None:
        trace = tmp_path / "runs.jsonl"
        trace.write_text('{"turns": [[0.5, 1.0], [0.2, 2.0]], "verify_s": 1.0}\n{"turns": [[0.1, 0.5]]}\n')
        replayed = json.loads(machine.cli("replay", str(trace), "--speed", "2", "--json").stdout)
        figures = replayed["policies"]["this system"]
        assert (figures["actions"], figures["failed"], replayed["trajectories"]) == (4, 0, 2)
        assert figures["step"] > 2.3  # 4.7 s of thinking and running, twice as fast

    def test_replay_compares_policies_on_simulated_nodes(self, machine: Machine, tmp_path: Path) -> None:
        options = ("--agent", "mini-swe-agent", "--trajectories", "8", "--simulate", "--cores", "2", "--json")
        policies = json.loads(machine.cli("replay", *options, "--policy", "unlimited,tangram_hints").stdout)["policies"]
        assert set(policies) == {"unlimited", "tangram_hints"}
        done = machine.cli("replay", *options, "--policy", "best", check=False)
        assert (done.returncode, "Available: static, unlimited" in done.stderr) == (EXIT_USAGE, True)

    def test_simulate_refuses_a_file_that_is_no_trace(self, machine: Machine, tmp_path: Path) -> None:
        (tmp_path / "other").write_text("hello\n")
        done = machine.cli("simulate", str(tmp_path / "other"), check=False)
        assert (done.returncode, "line 1 is no JSON" in done.stderr) == (EXIT_USAGE, True)


class TestActions:
    def test_trace_prints_the_spans_of_an_action(self, machine: Machine) -> None:
        id = json.loads(machine.cli("submit", "-o", "json", "--", "true").stdout)["id"]
        drawn = machine.cli("trace", id).stdout
        named = ("create action", "queue wait", "grant", "process action", "settle")
        assert [drawn.index(name) for name in named] == sorted(drawn.index(name) for name in named)
        assert [span["name"] for span in json.loads(machine.cli("trace", id, "-o", "json").stdout)["spans"]] == [*named]

    def test_trace_prints_batches_below_their_attempt(self, machine: Machine) -> None:
        machine.cli("score", "minilm", "a trace", "of a score", "--task", "traced")
        [action] = json.loads(machine.cli("list", "--task", "traced", "-o", "json").stdout)["items"]
        id = action["id"]
        assert machine.cli("list", "--task", "traced").stdout.splitlines()[1].split()[:5] == [
            id,
            "traced",
            "score",
            "settled",
            "ok",
        ]
        lines = machine.cli("trace", id).stdout.splitlines()
        [process] = [line for line in lines if line.lstrip().startswith("process action")]
        [batch] = [line for line in lines if line.lstrip().startswith("batch")]
        assert (batch.index("batch") - process.index("process"), "minilm" in batch) == (2, True)

    def test_list_prints_newest_actions_first_up_to_its_limit(self, machine: Machine) -> None:
        submit = ("submit", "--no-wait", "--task", "shown", "--", "true")
        one, other = (machine.cli(*submit).stdout.strip() for _ in range(2))
        lines = machine.cli("list", "--task", "shown").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["ID", other, one]
        assert len(machine.cli("list", "--task", "shown", "--limit", "1").stdout.splitlines()) == 2
        assert "tangram submit" in machine.cli("list", "--task", "none").stderr
        assert machine.cli("list", "--task", "shown", "--state", "gone", check=False).returncode == EXIT_USAGE

    def test_interrupted_submit_prints_the_id_of_the_running_action(self, machine: Machine) -> None:
        waiting = machine.begin("submit", "--follow", "--task", "left", "--", "sh", "-c", "echo begun; sleep 60")
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "begun\n"
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=20)
        with machine.client() as tangram:
            [left] = tangram.list(task="left")
            assert (waiting.returncode, str(left.id) in said, left.state) == (130, True, "running")
            tangram.cancel(left.id)
            tangram.wait([left.id])

    def test_explain_describes_a_settled_action(self, machine: Machine) -> None:
        id = json.loads(machine.cli("submit", "-o", "json", "--", "true").stdout)["id"]
        said = machine.cli("explain", id).stdout.splitlines()
        assert said[0] == "Settled: ok."
        assert "cpu_milli" in said[1]
        assert json.loads(machine.cli("explain", id, "-o", "json").stdout)["state"] == "settled"


class TestScores:
    def test_score_prints_the_score_or_the_error_code(self, machine: Machine) -> None:
        assert machine.cli("score", "minilm", "the same", "the same").stdout == "1.000000\n"
        assert 0 < float(machine.cli("score", "quality", "def f(x): return x").stdout) < 1
        assert machine.cli("score", "minilm", "a", check=False).returncode == EXIT_USAGE
        done = machine.cli("score", "minilm", " ", "x", check=False)
        assert (done.stdout.partition(":")[0], done.returncode) == ("empty_text", EXIT_FAILED)
        assert machine.cli("score", "nobody", "a", "b", check=False).returncode == EXIT_USAGE

    def test_reward_services_command_registers_changes_and_removes_services(self, machine: Machine) -> None:
        machine.cli(
            "reward-services", "register", "reward", "sequence-classifier", "rewards/one", "--tensor-parallel", "2"
        )
        assert "no node has it" in machine.cli("reward-services", "list").stdout
        assert "drained" in machine.cli("reward-services", "drain", "reward").stdout
        assert "drained" not in machine.cli("reward-services", "resume", "reward").stdout
        machine.cli("reward-services", "unregister", "reward")
        for arguments in (("load", "reward"), ("remove", "minilm"), ("register", "x", "no-kind", "y")):
            assert machine.cli("reward-services", *arguments, check=False).returncode == EXIT_USAGE

    def test_reward_services_list_and_doctor_show_available_services(self, machine: Machine) -> None:
        services = json.loads(machine.cli("reward-services", "list", "-o", "json").stdout)["items"]
        offered = {service["name"] for service in services if service["available"]}
        assert {"minilm", "relevance", "quality"} <= offered
        assert "minilm" in machine.cli("reward-services", "list").stdout
        checks = json.loads(machine.cli("doctor", "-o", "json").stdout)["checks"]
        found = {check["name"]: check["found"] for check in checks}
        assert "CPU device" in found["devices"]
        assert "minilm" in found["reward services"]

    def test_sdk_scores_items_and_raises_if_nothing_was_scored(self, machine: Machine) -> None:
        with machine.client() as tangram:
            same, empty = tangram.score("minilm", [("a b", "a b"), {"text": "", "reference": "x"}])
            assert (same.score, empty.score) == (pytest.approx(1.0, abs=1e-4), None)
            assert empty.error is not None
            late = tangram.run(score_action("minilm", [("a", "b")], timeout_s=1e-6))
            assert (late.outcome, late.reason) == ("infra_error", "score_timeout")
            with pytest.raises(ActionFailed):
                scores_of(late)
            with pytest.raises(ValidationFailed):
                tangram.score("minilm", [])


class TestSystem:
    def test_status_reports_every_process_as_ready(self, machine: Machine) -> None:
        status = machine.status()
        assert status["ready"]
        assert set(status["processes"]) == {
            "postgres", "cpu-launcher", "admission", "scheduler", "cpu", "gpu", "gateway"
        }  # fmt: skip

    def test_version_option_prints_the_package_version(self, machine: Machine) -> None:
        assert machine.cli("--version").stdout.strip() == version("arl-tangram")

    def test_second_up_attaches_to_the_running_system(self, machine: Machine) -> None:
        supervisor = machine.status()["supervisor"]
        assert json.loads(machine.cli("up", "-d", "-o", "json").stdout)["state"] == "already up"
        assert machine.status()["supervisor"] == supervisor

    def test_second_up_refuses_settings(self, machine: Machine) -> None:
        for settings in (("--host", "0.0.0.0"), ("--port", "9999"), ("--cores", "1")):
            done = machine.cli("up", "-d", *settings, check=False)
            assert (done.returncode, "tangram down" in done.stderr) == (EXIT_USAGE, True)

    def test_status_asks_the_system_in_tangram_url(self, machine: Machine, tmp_path: Path) -> None:
        url = machine.status()["endpoints"]["gateway"]
        done = Machine(tmp_path).cli("status", "-o", "json", variables={"TANGRAM_URL": url})
        assert json.loads(done.stdout) == {"url": url, "running": True, "ready": True, "message": ""}
        local = machine.cli("status", "-o", "json", variables={"TANGRAM_URL": url})
        assert json.loads(local.stdout)["directory"] == str(machine.directory)
        away = machine.cli("status", check=False, variables={"TANGRAM_URL": "http://127.0.0.1:9"})
        assert (away.returncode, "not running at http://127.0.0.1:9" in away.stdout) == (EXIT_NOT_RUNNING, True)
        wrong = machine.cli("status", check=False, variables={"TANGRAM_URL": "gateway"})
        assert (wrong.returncode, "is not the address of a gateway" in wrong.stderr) == (EXIT_USAGE, True)

    def test_explicit_state_directory_wins_over_tangram_url(self, machine: Machine) -> None:
        variables = {"TANGRAM_URL": "http://127.0.0.1:9"}
        done = machine.cli("status", "--dir", str(machine.directory), "-o", "json", variables=variables)
        assert json.loads(done.stdout)["ready"]

    def test_doctor_shows_the_nodes_of_the_system_in_tangram_url(self, machine: Machine, tmp_path: Path) -> None:
        key = (machine.directory / "api_key").read_text().strip()
        variables = {"TANGRAM_URL": machine.status()["endpoints"]["gateway"], "TANGRAM_API_KEY": key}
        found = json.loads(Machine(tmp_path).cli("doctor", "-o", "json", variables=variables).stdout)
        assert (found["running"], bool(found["nodes"])) == (True, True)

    def test_interrupted_logs_exit_as_other_commands(self, machine: Machine) -> None:
        following = machine.begin("system", "logs", "-f", "postgres")
        assert following.stdout is not None
        assert following.stdout.readline()
        following.send_signal(signal.SIGINT)
        assert (following.wait(30), following.communicate()[1]) == (EXIT_INTERRUPTED, "")

    def test_doctor_reports_the_limits_that_a_node_enforces(self, machine: Machine) -> None:
        found = json.loads(machine.cli("doctor", "-o", "json").stdout)
        levels = {entry["name"]: entry["level"] for entry in found["nodes"][0]["enforced"]}
        assert levels["files"] == levels["net_isolation"] == "enforced"

    def test_check_of_an_idle_system_is_clean(self, machine: Machine) -> None:
        with machine.client() as tangram:
            tangram.put_files("t", "audited", {"a": b"1"})
            found = json.loads(machine.cli("check", "-o", "json").stdout)
            held = {entry["resource"]: entry["allocated"] for entry in found["rows"]["allocations"]}
            assert held["cpu_milli"] == 0
            assert held["memory_mib"] > 0
            assert (found["clean"], found["findings"]) == (True, [])
            walls = {entry.name: entry.level for node in tangram.nodes().items for entry in node.enforced}
            # Without cgroups an environment has no name outside, and the check says that it did not compare them.
            assert ("environments" in found["compared"]) == (walls["memory"] == "enforced")
            tangram.end_trajectory("t", "audited")
        assert machine.cli("check").stdout.splitlines()[-1] == "clean"

    def test_check_reports_a_leftover_file(self, machine: Machine) -> None:
        stray = machine.directory / "some.unfinished"
        stray.touch()
        done = machine.cli("check", "-o", "json", check=False)
        stray.unlink()
        assert done.returncode == EXIT_FAILED
        assert [entry["subject"] for entry in json.loads(done.stdout)["findings"]] == [str(stray)]

    def test_logs_contain_no_secret(self, machine: Machine) -> None:
        secrets = [path.read_text().strip() for path in (machine.directory / "tokens").iterdir()]
        secrets.append((machine.directory / "api_key").read_text().strip())
        logs = "".join(path.read_text(errors="replace") for path in (machine.directory / "logs").glob("*.log"))
        assert logs
        assert not [secret for secret in secrets if secret in logs]

    def test_submit_without_a_running_system_prints_advice(self, tmp_path: Path) -> None:
        done = Machine(tmp_path / "nothing").cli("submit", "--", "true", check=False)
        assert done.returncode == EXIT_NOT_RUNNING
        assert "tangram up" in done.stderr


@pytest.mark.slow
class TestTemplates:
    def test_template_is_imported_used_and_protected_while_in_use(self, machine: Machine, tmp_path: Path) -> None:
        root = a_root(tmp_path / "root", files={"data/which": "image\n"})
        layout = an_oci_layout(tmp_path / "layout", [packed(root)], config={"WorkingDir": "/data"})
        unknown = machine.cli("submit", "--template", "small", "--", "cat", "which", check=False)
        assert unknown.returncode == EXIT_USAGE
        assert "template 'small' does not exist. Available: host" in unknown.stderr
        made = json.loads(machine.cli("templates", "import", str(layout), "--name", "small", "-o", "json").stdout)
        assert made["usable"]
        assert machine.cli("submit", "--template", "small", "--", "cat", "which").stdout == "image\n"
        assert machine.cli("templates", "list").stdout.splitlines()[1].split()[:2] == ["small", made["digest"][:19]]
        assert "imported templates: small" in machine.cli("doctor").stdout
        with machine.client() as tangram:
            kept = tangram.run(task="t", trajectory="imaged", argv=["sh", "-c", "echo x >>which"], template="small")
            refused = machine.cli("templates", "remove", "small", check=False)
            assert (kept.outcome, refused.returncode) == ("ok", EXIT_FAILED)
            assert "environments still use template small" in refused.stderr
            again = tangram.run(task="t", trajectory="imaged", argv=["cat", "which"])
            assert again.result is not None
            assert again.result.stdout.text == "image\nx\n"
            tangram.end_trajectory("t", "imaged")
        assert machine.cli("check").stdout.splitlines()[-1] == "clean"

    def test_import_of_a_missing_image_prints_an_explanation(self, machine: Machine, tmp_path: Path) -> None:
        done = machine.cli("templates", "import", str(tmp_path / "missing"), "--name", "x", check=False)
        assert (done.returncode, done.stdout) == (EXIT_FAILED, "")
        assert "is neither a directory nor a file" in done.stderr


class TestSdk:
    def test_as_completed_yields_every_action(self, machine: Machine) -> None:
        with machine.client() as tangram:
            ids = tangram.submit_many([exec_action(task="t", argv=["sleep", s]) for s in ("0.5", "0", "0")])
            assert {action.id for action in tangram.as_completed(ids, timeout_s=30)} == set(ids)

    def test_trajectory_keeps_uploaded_files(self, machine: Machine) -> None:
        with machine.client() as tangram:
            tangram.put_files("t", "files", {"a/b.bin": b"\x00\xff", "c": "é"})
            assert tangram.get_files("t", "files", ["a/b.bin", "c", "none"]) == {
                "a/b.bin": b"\x00\xff",
                "c": "é".encode(),
            }
            tangram.end_trajectory("t", "files")

    async def test_environments_are_created_by_both_clients_and_ended_by_cli(self, machine: Machine) -> None:
        wanted: EnvironmentOptions = {"task": "kept", "memory_mib": 64, "disk_mib": 8, "files": {"a": b"1"}}
        with machine.client() as tangram:
            first = tangram.environment(**wanted)
        async with machine.async_client() as tangram:
            second = await tangram.environment(**wanted)
            assert {each.id for each in await tangram.environments(task="kept")} == {first.id, second.id}
            assert await tangram.get_files("kept", first.trajectory, ["a"]) == {"a": b"1"}
            inside = await tangram.run(task="kept", environment_id=second.id, argv=["cat", "a"])
            assert inside.result is not None
            assert (inside.environment, inside.result.stdout.text) == (second.id, "1")
        listed = machine.cli("environments", "list", "--task", "kept").stdout
        assert all(str(each.id) in listed for each in (first, second))
        machine.cli("environments", "end", str(first.id), str(second.id))
        assert machine.cli("environments", "list", "--task", "kept").stdout == ""

    def test_environments_fork_prints_ids_and_reports_uncopied_processes(self, machine: Machine) -> None:
        with machine.client() as tangram, tangram.environment(task="forks", memory_mib=64, disk_mib=8) as source:
            source.run(argv=["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $! > pid"])
            done = machine.cli("environments", "fork", str(source.id), "--count", "2", "--idle-ttl-s", "60")
            forks = [tangram.get_environment(UUID(id)) for id in done.stdout.split()]
            assert [each.info.idle_ttl_s for each in forks] == [60, 60]
            assert forks[1].files.read("pid") == source.files.read("pid")
            assert "running processes of the source were not copied: 1" in done.stderr
            shown = json.loads(machine.cli("environments", "fork", str(source.id), "-o", "json").stdout)
            assert (len(shown["items"]), shown["processes_copied"], shown["leftover_processes"]) == (1, False, 1)
            for each in (*forks, *source.fork(1)):
                each.end()
            tangram.end_environment(UUID(shown["items"][0]["id"]))

    def test_cancelled_action_settles_as_cancelled(self, machine: Machine) -> None:
        with machine.client() as tangram:
            action = tangram.submit(task="t", argv=["sleep", "60"])
            with pytest.raises(WaitTimeout):
                tangram.wait([action.id], timeout_s=0.2)
            tangram.cancel(action.id)
            assert tangram.wait([action.id], timeout_s=20)[0].outcome is ActionOutcome.CANCELLED

    def test_unknown_action_raises_not_found(self, machine: Machine) -> None:
        with machine.client() as tangram, pytest.raises(NotFound):
            tangram.get(numbered(1))

    def test_list_iterates_over_all_pages(self, machine: Machine) -> None:
        with machine.client() as tangram:
            ids = tangram.submit_many([exec_action(task="listed", argv=["true"])] * 150)
            assert [action.id for action in tangram.list(task="listed")] == ids[::-1]
            tangram.wait(ids, timeout_s=60)

    async def test_async_client_runs_source_with_stdin(self, machine: Machine) -> None:
        async with machine.async_client() as tangram:
            action = await tangram.run(task="t", source="import sys; print(sys.stdin.read())", stdin="in")
            assert action.result is not None
            assert action.result.stdout.text == "in\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_submits_an_action_and_gets_its_outcome(machine: Machine) -> None:
    url = machine.status()["endpoints"]["gateway"]
    key = (machine.directory / "api_key").read_text().strip()
    body = json.dumps({"task": "ai-coding", "argv": ["python3", "-c", "print(6 * 7)"], "timeout_s": 10})
    done = subprocess.run(
        ["curl", "-s", f"{url}/v1/actions?wait=30", "-H", f"Authorization: Bearer {key}",
         "-H", "Content-Type: application/json", "-d", body],
        capture_output=True, check=True,
    )  # fmt: skip
    action = json.loads(done.stdout)
    assert (action["outcome"], action["result"]["stdout"]["text"]) == ("ok", "42\n")


@pytest.mark.slow
def test_demo_rewards_right_answers_and_no_reward_hacks(machine: Machine) -> None:
    done = machine.cli("bench", "demo", "--running", "--json", "--quick", "--trajectories", "3", timeout_s=600)
    figures = json.loads(done.stdout)["figures"]
    assert figures["trajectories"] == 24
    assert figures["wrong_rewarded"] == figures["right_unrewarded"] == 0
    assert figures["hacks_rewarded"] == figures["masked"] == 0
    assert figures["hacks_tried"] >= 12
    assert (figures["sandbox_enforced"], figures["scored"], figures["reward_services"]) == (1, 24, 3)
    for name in ("likeness", "quality"):
        assert figures[f"{name}_right_mean"] > figures[f"{name}_wrong_mean"]


@pytest.mark.slow
async def test_interrupted_demo_ends_the_environments_of_its_rollouts(machine: Machine) -> None:
    """They would keep their memory until their idle time has passed."""
    demo = machine.begin("bench", "demo", "--running", "--quick", "--trajectories", "2")
    with machine.client() as tangram:
        live = lambda: list(tangram.environments(task="demo-coding", state="live"))  # noqa: E731
        await eventually(lambda: len(live()) >= 2 or demo.poll() is not None, timeout_s=60)
        demo.send_signal(signal.SIGINT)
        said = demo.communicate(timeout=60)[1]
        assert (demo.returncode, "interrupted. The environments" in said, "Traceback" in said) == (130, True, False)
        await eventually(lambda: live() == [], timeout_s=60)
        unsettled = [each for each in tangram.list(task="demo-coding") if each.state != "settled"]
        assert [each for each in unsettled if not each.cancel_requested] == []
