"""Test `tangram submit` against a system started by `tangram up`: output, exit codes and every option."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from arl_tangram.cli.output import EXIT_USAGE
from support.machine import Machine, a_machine


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with a_machine(tmp_path_factory.mktemp("submit") / "state") as machine:
        yield machine


def test_submit_prints_the_output_of_the_program(machine: Machine) -> None:
    done = machine.cli("submit", "--", "sh", "-c", "echo out; echo err >&2")
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\n")
    assert "ok" in done.stderr


def test_submit_follow_and_logs_print_the_same_output(machine: Machine) -> None:
    done = machine.cli("submit", "--follow", "--", "sh", "-c", "echo out; echo err >&2; exit 3", check=False)
    id = done.stderr.splitlines()[-1].partition(" ")[0]
    again = machine.cli("logs", id, check=False)
    for shown in (done, again):
        assert (shown.stdout, shown.returncode) == ("out\n", 3)
        assert shown.stderr.startswith("err\n")
        assert "user_error" in shown.stderr


def test_submit_runs_python_source_from_stdin(machine: Machine) -> None:
    assert machine.cli("submit", "--source", "-", stdin="print(6 * 7)").stdout == "42\n"


def test_submit_uploads_a_file(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    assert machine.cli("submit", "--file", str(tmp_path / "note.txt"), "--", "cat", "note.txt").stdout == "hello"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--", "sh", "-c", "exit 3"), 3),
        (("--", "sh", "-c", "kill -9 $$"), 137),
        (("--timeout-s", "0.2", "--", "sleep", "60"), 124),
        (("--", "/no/such/program"), 127),
    ],
)
def test_submit_returns_the_exit_code_of_the_program(machine: Machine, arguments: tuple[str, ...], code: int) -> None:
    assert machine.cli("submit", *arguments, check=False).returncode == code


CROWD = "for i in 1 2 3 4 5 6; do sleep 60 & done; exit 1"


@pytest.mark.parametrize("follow", [(), ("--follow",)])
@pytest.mark.parametrize(
    ("arguments", "code", "status"),
    [
        (("--", "true"), 0, "ok  queue "),
        (("--", "sh", "-c", "exit 3"), 3, "user_error (exit code 3)  queue "),
        (("--", "sh", "-c", "kill -TERM $$"), 143, "user_error (SIGTERM)  queue "),
        (("--timeout-s", "0.2", "--", "sleep", "60"), 124, "user_timeout"),
        (("--pids", "4", "--", "sh", "-c", CROWD), 125, "limit_exceeded (pids)"),
        (("--deadline-s", "0.001", "--", "sleep", "1"), 125, "deadline_in_queue"),
    ],
)  # fmt: skip
def test_exit_code_and_status_line_of_submit_tell_the_outcome(
    machine: Machine, arguments: tuple[str, ...], code: int, status: str, follow: tuple[str, ...]
) -> None:
    done = machine.cli("submit", *follow, *arguments, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1].partition(" ")[2][: len(status)]) == (code, status)


def test_submit_passes_every_field_of_an_action(machine: Machine, tmp_path: Path) -> None:
    options = (
        "--env",
        "GREETING=hello",
        "--cpu",
        "1-2",
        "--exclusive",
        "--retries",
        "2",
        "--priority",
        "3",
        "--label",
        "a=b",
    )
    program = (
        "--fetch",
        "out/x",
        "--fetch-to",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        "mkdir out; echo $GREETING >out/x",
    )
    done = machine.cli("submit", "-o", "json", *options, *program)
    assert json.loads(done.stdout)["labels"] == {"a": "b"}
    assert json.loads(done.stdout)["elastic"]["max"] == 2000
    assert (tmp_path / "out/x").read_text() == "hello\n"


def test_submit_reads_a_complete_request(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "action.json").write_text(json.dumps({"task": "t", "argv": ["echo", "from json"]}))
    assert machine.cli("submit", "--json", str(tmp_path / "action.json")).stdout == "from json\n"
    (tmp_path / "action.json").write_text(json.dumps({"task": "t", "argv": "echo"}))
    done = machine.cli("submit", "--json", str(tmp_path / "action.json"), check=False)
    assert (done.returncode, "argv" in done.stderr, "Traceback" in done.stderr) == (EXIT_USAGE, True, False)


def test_submit_explains_a_long_wait(machine: Machine) -> None:
    machine.cli("submit", "--task", "paused", "--", "true")
    machine.cli("queues", "pause", "paused")
    waiting = machine.begin("submit", "--task", "paused", "--", "echo", "done")
    assert waiting.stderr is not None
    said = waiting.stderr.readline()
    machine.cli("queues", "resume", "paused")
    out, _ = waiting.communicate(timeout=30)
    assert ("queue_paused" in said, out, waiting.returncode) == (True, "done\n", 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "--cpu", "many", "--", "true"),
        ("get", "not-an-id"),
        ("list", "--no-such-flag"),
        ("score", "x", "y"),
    ],
)
def test_error_is_json_with_json_output(machine: Machine, arguments: tuple[str, ...]) -> None:
    done = machine.cli(arguments[0], "-o", "json", *arguments[1:], check=False)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert json.loads(done.stderr)["detail"]


def test_submit_with_an_impossible_demand_names_the_field(machine: Machine) -> None:
    done = machine.cli("submit", "--cpu", "4000", "--", "true", check=False)
    assert done.returncode == EXIT_USAGE
    assert "demand.cpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_get_returns_an_earlier_action(machine: Machine) -> None:
    submitted = json.loads(machine.cli("submit", "--no-wait", "-o", "json", "--", "true").stdout)
    found = json.loads(machine.cli("get", submitted["id"], "--wait-s", "20", "-o", "json").stdout)
    assert (found["id"], found["outcome"]) == (submitted["id"], "ok")


def test_submit_takes_task_and_sizes_from_its_environment(machine: Machine) -> None:
    id = machine.cli("environments", "create", "--task", "ai", "--memory-mib", "64").stdout.strip()
    assert machine.cli("submit", "--environment", id, "--", "echo", "inside").stdout == "inside\n"
    assert machine.cli("environments", "shell", id, stdin="cd /tmp\npwd\nexit\n").stdout == "/tmp\n"
    machine.cli("environments", "end", id)


def test_submit_refuses_options_next_to_a_complete_request(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "action.json").write_text(json.dumps({"task": "t", "argv": ["true"]}))
    done = machine.cli("submit", "--json", str(tmp_path / "action.json"), "--cpu", "2", check=False)
    assert (done.returncode, "Remove cpu" in done.stderr) == (EXIT_USAGE, True)


def test_command_without_arguments_shows_the_help(machine: Machine) -> None:
    done = machine.cli(check=False)
    assert ("Usage:" in done.stdout + done.stderr, "Traceback" in done.stderr) == (True, False)


def test_shell_completes_names_of_the_running_system(machine: Machine) -> None:
    machine.cli("submit", "--task", "completed", "--", "true")
    variables = {"_TANGRAM_COMPLETE": "complete_bash", "COMP_WORDS": "tangram submit --task comp", "COMP_CWORD": "3"}
    done = subprocess.run(
        [Path(sys.executable).parent / "tangram"],
        env={**os.environ, **variables, "TANGRAM_DIR": str(machine.directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["completed"], done.stderr


def test_settings_of_a_running_system_are_refused(machine: Machine) -> None:
    done = machine.cli("up", "-d", "--cores", "1", check=False)
    assert (done.returncode, "tangram down" in done.stderr) == (EXIT_USAGE, True)


def test_purge_removes_nothing_from_another_directory(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.log").write_text("mine")
    done = machine.cli("down", "--purge", "--dir", str(tmp_path), check=False)
    assert (done.returncode, (tmp_path / "logs" / "mine.log").read_text()) == (EXIT_USAGE, "mine")
