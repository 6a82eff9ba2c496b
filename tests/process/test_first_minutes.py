"""`tangram quickstart`, `tangram demo` and `tangram bench demo` as real processes, on a terminal and in a file."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from rich.cells import cell_len

from arl_tangram.cli.output import EXIT_INTERRUPTED, EXIT_NO_SANDBOX, EXIT_NOT_RUNNING, EXIT_USAGE
from support.terminal import COLUMNS, run_in_terminal

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0
TANGRAM = (sys.executable, "-m", "arl_tangram.cli")
QUICKSTART = (*TANGRAM, "quickstart", "--agents", "2")
CLAIM = re.compile(
    r"Same 4 rollouts, same \d cores: \d+ s → \d+ s \(pods without limits: \d+ s\);"
    r" cores held \d+ → \d+ core-s; 2 kinds of reward hack, 0 paid"
)


@pytest.fixture
def temporary_files() -> Iterator[Path]:
    """Yield a folder for temporary files, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="first-") as path:
        yield Path(path)


@pytest.fixture
def environment(temporary_files: Path) -> dict[str, str]:
    """Return the environment without settings of other systems. Temporary systems live in a folder of the test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")}
    kept.pop("COLUMNS", None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return kept | {"PATH": path, "TMPDIR": str(temporary_files)}


@pytest.fixture
def two_problems(tmp_path: Path) -> Path:
    path = tmp_path / "two.jsonl"
    lines = files("arl_bench.demo").joinpath("problems.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    return path


def run_piped(*command: str, env: dict[str, str], cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


def too_wide(lines: list[str]) -> list[str]:
    return [line for line in lines if cell_len(line.rstrip()) > COLUMNS]


def processes_that_name(path: Path) -> list[bytes]:
    """Return the command lines of all processes that have the path as an argument."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            content = each.read_bytes()
        except OSError:  # it has ended
            continue
        if os.fsencode(path) in content:
            found.append(content)
    return found


class TestQuickstart:
    def test_piped_output_explains_programs_and_ends_with_a_claim_and_three_commands(
        self, environment: dict[str, str], temporary_files: Path, tmp_path: Path
    ) -> None:
        done = run_piped(*QUICKSTART, env=environment, cwd=tmp_path)
        assert "\x1b" not in done.stdout
        explained = re.findall(r"# (\w+), reward (\d)", done.stdout)
        assert explained == [("ok", "1"), ("user_error", "0"), ("user_timeout", "0")]
        assert "2 of 2 done" in done.stdout
        claim, _, heading, *commands = done.stdout.splitlines()[-6:]
        assert re.fullmatch(
            r"2 agents shared \d cores: \d+ actions in \d+ s\. No cores were held while the models thought,"
            r" \d+ s in total\. 1 of 1 right solutions got reward 1; 1 of 1 reward hacks got 0\.",
            claim,
        )
        assert heading == "Next:"
        assert [command.split()[-1] for command in commands] == ["-d", "7)'", "demo"]
        assert too_wide([line for line in done.stdout.splitlines() if line != claim]) == []
        assert list(temporary_files.iterdir()) == []

    @pytest.mark.slow
    def test_terminal_output_shows_each_agent_in_80_columns(
        self, environment: dict[str, str], temporary_files: Path, tmp_path: Path
    ) -> None:
        done = run_in_terminal(QUICKSTART, env=environment, cwd=tmp_path, timeout_s=TIMEOUT_S)
        assert done.returncode == 0, done.written
        assert too_wide(done.lines) == []
        states = {state for line in done.lines for state in ("thinks", "computes", "done") if f" {state} " in line}
        assert states == {"thinks", "computes", "done"}
        assert [line.split()[-2:] for line in done.lines if " reward hack" in line and " done " in line]
        assert list(temporary_files.iterdir()) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted_quickstart_leaves_no_process_and_no_file(
        self, environment: dict[str, str], temporary_files: Path, number: signal.Signals
    ) -> None:
        started = subprocess.Popen(
            QUICKSTART, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert started.stdout is not None
        assert any("ready after" in line for line in started.stdout)
        assert processes_that_name(temporary_files)
        started.send_signal(number)
        _, said = started.communicate(timeout=TIMEOUT_S)
        assert started.returncode == EXIT_INTERRUPTED, said
        assert "stopped and removed" in said
        assert processes_that_name(temporary_files) == []
        assert list(temporary_files.iterdir()) == []


class TestDemo:
    @pytest.mark.slow
    def test_piped_demo_prints_progress_a_table_and_the_claim_last(
        self, environment: dict[str, str], two_problems: Path, tmp_path: Path
    ) -> None:
        command = (*TANGRAM, "demo", "--problems", str(two_problems), "--trajectories", "2")
        done = run_piped(*command, env=environment, cwd=tmp_path)
        lines = done.stdout.splitlines()
        assert CLAIM.fullmatch(lines[-1]), done.stdout
        assert too_wide(lines[:-1]) == []
        policies = ("one pod per rollout", "pods without limits", "Tangram")
        rows = [line.split()[-3:] for line in lines if line.strip().startswith(policies)]
        assert rows == [["0", "of", "4"]] * 3
        for policy in policies:
            assert f"{policy}: starting a system" in done.stderr
            assert re.search(rf"{policy}: +\d+ s, 4 of 4 rollouts done, \d+ actions", done.stderr)
        assert (tmp_path / "tangram-demo.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.slow
    def test_all_policies_fit_a_terminal_of_80_columns(
        self, environment: dict[str, str], two_problems: Path, tmp_path: Path
    ) -> None:
        command = (*TANGRAM, "bench", "demo", "--problems", str(two_problems), "--picture", "drawn")
        done = run_in_terminal(command, env=environment, cwd=tmp_path, timeout_s=TIMEOUT_S)
        assert done.returncode == 0, done.written
        assert too_wide(done.lines) == []
        text = " ".join(" ".join(done.lines).split())
        assert CLAIM.search(text), text[-1000:]
        names = (
            *("one pod per rollout", "first come, first served", "small pods, all at once"),
            *("overcommitted, limited", "pods without limits"),
        )
        assert [name for name in names if name not in text] == []
        assert (tmp_path / "drawn.svg").exists()

    @pytest.mark.slow
    def test_json_is_one_document_on_standard_output(
        self, environment: dict[str, str], two_problems: Path, tmp_path: Path
    ) -> None:
        command = (*TANGRAM, "bench", "demo", "--problems", str(two_problems), "--policy", "tangram", "--json")
        figures = json.loads(run_piped(*command, env=environment, cwd=tmp_path).stdout)["figures"]
        assert (figures["trajectories"], figures["wrong_rewarded"], figures["tangram_wrong_rewards"]) == (4, 0, 0)


class TestMakeDemo:
    """The recipe of `make demo`, with a stand-in for the installed command that records its calls."""

    @staticmethod
    def run(folder: Path, script: str) -> tuple[int, list[str]]:
        command = folder / "bin" / "tangram"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{script}\n')
        command.chmod(0o755)
        (folder / ".ready").touch()
        made = ("make", "-s", "-C", str(ROOT), f"VENV={folder}", f"--old-file={folder}/.ready", "demo")
        done = subprocess.run(made, capture_output=True, timeout=TIMEOUT_S, check=False)
        return done.returncode, (folder / "calls").read_text().splitlines()

    def test_quickstart_and_comparison_run_in_sandboxes(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, "exit 0") == (0, ["quickstart", "demo"])

    def test_machine_without_a_sandbox_runs_both_without_isolation(self, tmp_path: Path) -> None:
        calls = ["quickstart", "quickstart --unsafe-local", "demo --unsafe-local"]
        assert self.run(tmp_path, f'[ "$*" != quickstart ] || exit {EXIT_NO_SANDBOX}') == (0, calls)

    def test_failed_quickstart_ends_the_recipe(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, "exit 1") == (2, ["quickstart"])


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("bench", "demo", "--policy", "fifo"), EXIT_USAGE, "Available: tangram, fcfs"),
            (("bench", "demo", "--running", "--policy", "fcfs"), EXIT_USAGE, "exclude each other"),
            (("bench", "demo", "--running"), EXIT_NOT_RUNNING, "tangram up -d"),
            (("demo", "--problems", "missing.jsonl"), EXIT_USAGE, "missing.jsonl cannot be read"),
            (("demo", "--unsafe-local", "--problems", "any.jsonl"), EXIT_USAGE, "bundled problems only"),
        ],
    )
    def test_wrong_choices_name_the_choice_and_what_to_do(
        self, environment: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
    ) -> None:
        env = environment | {"TANGRAM_DIR": str(tmp_path / "none")}
        done = run_piped(*TANGRAM, *arguments, env=env, cwd=tmp_path, check=False)
        assert done.returncode == code
        assert said in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
