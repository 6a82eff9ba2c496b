"""Test how sessions end: by exit, exec, a dead shell or their environment."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.conditions import eventually
from support.sandbox import Bench, a_bench, a_command, sandboxes
from support.shell import Shell

REAL = ("unsafe-local", *sandboxes(slow=("landlock",)))
KILLED = 9


@pytest.fixture(scope="module", params=REAL)
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("executor"), request.param) as bench:
        yield bench


@pytest.fixture
async def shell(bench: Bench) -> AsyncIterator[Shell]:
    shell = Shell(bench)
    yield shell
    await bench.destroy(shell.environment.id)


def files_of(bench: Bench) -> int:
    assert bench.launcher is not None
    return len(os.listdir(f"/proc/{bench.launcher.pid}/fd"))


class TestSessionEnd:
    async def test_exit_ends_the_session_and_the_next_command_starts_another(self, shell: Shell) -> None:
        await shell.run("x=1")
        report = await shell.run("echo bye; exit 3")
        assert (report.outcome, report.exit_code, report.stdout.data) == ("user_error", 3, b"bye\n")
        assert report.message == "session 'main' ended with this command; the next one begins another"
        again = await shell.run("echo [$x]")
        assert (again.stdout.data, again.message) == (b"[]\n", "session 'main' began with this command")

    @pytest.mark.parametrize(
        ("command", "code", "said"),
        [
            ("exec python3 -c 'import sys; print(sys.stdin.isatty()); sys.exit(4)'", 4, b"True\n"),
            ("sleep 60 & exec sh -c 'sleep 0.2; echo late; exit 5'", 5, b"late\n"),
            ("exec bash -c 'kill -TERM $$'", None, b""),
            ("exec true", 0, b""),
            ("set -u; set -e; echo $undefined", 1, b"undefined: unbound variable\n"),
        ],
    )
    async def test_program_that_replaces_the_shell_gives_its_output_and_exit_code(
        self, shell: Shell, command: str, code: int | None, said: bytes
    ) -> None:
        await shell.run("x=1")
        report = await shell.run(command, timeout_s=20)
        assert (report.exit_code, report.outcome) == (code, "ok" if code == 0 else "user_error")
        assert report.signal == (None if code is not None else 15)
        assert report.stdout.data.endswith(said)
        assert report.message == "session 'main' ended with this command; the next one begins another"
        again = await shell.run("echo [$x]")
        assert (again.stdout.data, again.message) == (b"[]\n", "session 'main' began with this command")

    async def test_program_that_replaces_the_shell_is_stopped_at_its_timeout(self, shell: Shell) -> None:
        report = await shell.run("exec sh -c \"trap '' INT; while :; do sleep 61.25; done\"", timeout_s=0.3)
        assert report.outcome == "user_timeout"
        assert await shell.says("pgrep -f 'sleep 61[.]25' || echo none") == "none\n"

    async def test_redirections_by_exec_last_for_the_session(self, shell: Shell) -> None:
        await shell.run("exec 5>&1 >log; echo one")
        assert await shell.says("echo two; echo three >&5") == "three\n"
        assert await shell.says("exec >&5 5>&-; cat log") == "one\ntwo\n"
        assert await shell.says("exec <log; read a; echo $a; read a; echo $a") == "one\ntwo\n"

    async def test_session_has_no_suspend(self, shell: Shell) -> None:
        report = await shell.run("suspend")
        assert (report.outcome, report.exit_code) == ("user_error", 127)

    async def test_shell_that_kills_itself_is_reported_as_ended(self, shell: Shell) -> None:
        report = await shell.run("kill -9 $$")
        assert (report.outcome, report.signal) == ("user_error", KILLED)
        assert "began with this command; session 'main' ended" in (report.message or "")

    @pytest.mark.parametrize(
        "said", ["yes | tr -d '\\n' | head -c 3000000", "printf '%09000d\\0' 1", "printf 'x:%d\\0' 1 2 3"]
    )
    async def test_malformed_data_on_the_control_channel_ends_only_that_session(self, shell: Shell, said: str) -> None:
        report = await shell.run(f"for f in /proc/$$/fd/1?; do {said} > $f; done 2>/dev/null", timeout_s=3)
        assert report.outcome in ("ok", "user_error", "user_timeout")
        assert await Shell(shell.bench, shell.environment, "other").says("echo hello") == "hello\n"

    async def test_session_killed_between_two_commands_is_replaced(self, shell: Shell) -> None:
        await shell.run("x=1; echo $$ > pid")
        await shell.bench.run(a_command("sh", "-c", "kill -9 $(cat pid)", environment=shell.environment))
        again = await shell.run("echo [$x]")
        assert (again.stdout.data, again.message) == (b"[]\n", "session 'main' began with this command")

    @pytest.mark.parametrize("between", [False, True])
    async def test_killed_shell_with_a_surviving_job_is_reported_as_ended(self, shell: Shell, between: bool) -> None:
        keep = "(trap '' HUP; while :; do sleep 1; done) &"
        if between:
            await shell.run(f"{keep} echo $$ > pid")
            # Until it is reaped, which the launcher is told of by then.
            dies = "kill -9 $(cat pid); while kill -0 $(cat pid); do sleep 0.01; done; sleep 0.3"
            await shell.bench.run(a_command("sh", "-c", dies, environment=shell.environment))
        else:
            report = await shell.run(f"{keep} kill -9 $$", timeout_s=5)
            assert (report.outcome, report.signal) == ("user_error", KILLED)
            assert "session 'main' ended with this command" in (report.message or "")
        again = await shell.run("echo hello", timeout_s=5)
        assert (again.stdout.data, again.message) == (b"hello\n", "session 'main' began with this command")

    async def test_session_interrupted_between_two_commands_survives(self, shell: Shell) -> None:
        await shell.run("x=1; echo $$ > pid")
        await shell.bench.run(a_command("sh", "-c", "kill -INT $(cat pid); sleep 0.3", environment=shell.environment))
        for _ in range(2):
            assert (await shell.says("echo $x; echo error >&2")).lstrip() == "1\nerror\n"

    async def test_session_without_bash_fails_with_an_explanation(self, shell: Shell) -> None:
        await shell.bench.run(replace(a_command(env={"PATH": "/nowhere"}, environment=shell.environment), argv=None))
        report = await shell.run("echo hello")
        assert report.outcome == "user_error"
        assert "a session needs bash" in (report.message or "")

    async def test_seventeenth_session_of_an_environment_is_refused(self, shell: Shell) -> None:
        for number in range(16):
            assert await Shell(shell.bench, shell.environment, f"s{number}").says("echo hello") == "hello\n"
        refused = await shell.run("echo hello")
        message = "an environment can have at most 16 sessions; end one with `exit`"
        assert (refused.outcome, refused.message) == ("user_error", message)

    async def test_sessions_leave_no_open_file_in_the_launcher(self, bench: Bench) -> None:
        await bench.run(a_command("true"))
        before = files_of(bench)
        shell = Shell(bench)
        for command in ("sleep 60 &", "exit", "x=1", "read x"):
            await shell.run(command, timeout_s=0.3, stdin_open=True)
        await Shell(bench, shell.environment, "other").run("sleep 60 &")
        await bench.destroy(shell.environment.id)
        await eventually(lambda: files_of(bench) <= before)


async def test_background_job_gets_no_cpu_between_commands(tmp_path: Path) -> None:
    async with a_bench(tmp_path, "namespaces") as bench:
        shell = Shell(bench)
        await shell.run("while :; do n=$((n + 1)); done & echo $! > pid")
        used = "cut -d' ' -f14 /proc/$(cat pid)/stat"
        before = int(await shell.says(used))
        assert (await bench.run(a_command("sleep", "1"))).outcome == "ok"  # in another environment
        after = int(await shell.says(used))
        assert after - before < 50, "ticks of 10 ms"
