"""Test sessions: shell state between commands, command outcomes and timeouts."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.sandbox import Bench, a_bench, a_command, sandboxes
from support.shell import Shell

REAL = ("unsafe-local", *sandboxes(slow=("landlock",)))


@pytest.fixture(scope="module", params=REAL)
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("executor"), request.param) as bench:
        yield bench


@pytest.fixture
async def shell(bench: Bench) -> AsyncIterator[Shell]:
    shell = Shell(bench)
    yield shell
    await bench.destroy(shell.environment.id)


class TestSessionState:
    async def test_session_keeps_directory_variables_functions_and_options(self, shell: Shell) -> None:
        first = await shell.run("mkdir d; cd d; x=5; export y=6; f() { echo f $x; }; shopt -s nullglob")
        assert (first.outcome, first.message) == ("ok", "session 'main' began with this command")
        said = await shell.run("basename $PWD; f; sh -c 'echo $y'; echo *.none")
        assert (said.stdout.data, said.message) == (b"d\nf 5\n6\n\n", None)

    async def test_session_keeps_a_background_job(self, shell: Shell) -> None:
        started = await shell.run("sleep 60 &")
        assert (started.outcome, started.leftover_processes) == ("ok", 1)
        assert "sleep 60" in await shell.says("jobs")
        assert await shell.says("kill %1; wait %1; echo $?") == "143\n"
        assert await shell.says("jobs") == ""

    async def test_two_sessions_of_one_environment_share_only_files(self, shell: Shell) -> None:
        other = Shell(shell.bench, shell.environment, "other")
        await shell.run("x=1; echo hello > file; cd /")
        assert await other.says("echo [$x]; cat file") == "[]\nhello\n"
        assert await shell.says("echo $x $PWD") == "1 /\n"

    async def test_ordinary_action_between_two_commands_leaves_session_state_unchanged(self, shell: Shell) -> None:
        await shell.run("x=1; echo hello > file")
        report = await shell.bench.run(a_command("cat", "file", environment=shell.environment))
        assert report.stdout.data == b"hello\n"
        assert await shell.says("echo $x") == "1\n"


class TestCommands:
    async def test_exit_code_is_that_of_the_command(self, shell: Shell) -> None:
        report = await shell.run("echo out; echo err >&2; (exit 3)")
        assert (report.outcome, report.exit_code, report.stdout.data) == ("user_error", 3, b"out\nerr\n")
        assert await shell.says("echo still") == "still\n"

    @pytest.mark.parametrize(
        ("command", "said"),
        [
            ("cat <<END\na 'b' \"$((1 + 1))\"\nEND\n", "a 'b' \"2\"\n"),
            ("for i in 1 2; do\n  echo $i\ndone", "1\n2\n"),
            ("echo 'ä\u2028𝄞'", "ä\u2028𝄞\n"),
            ("printf 'no newline'", "no newline"),
            ("# a comment", ""),
            ("", ""),
            ("test -t 0 && test -t 1 && echo terminal; echo $TERM", "terminal\ndumb\n"),
        ],
    )
    async def test_any_command_text_runs_unchanged(self, shell: Shell, command: str, said: str) -> None:
        assert await shell.says(command) == said

    async def test_syntax_error_ends_only_its_command(self, shell: Shell) -> None:
        await shell.run("x=1")
        report = await shell.run("if then fi")
        assert (report.outcome, report.exit_code) == ("user_error", 2)
        assert b"syntax error" in report.stdout.data
        assert await shell.says("echo $x") == "1\n"

    async def test_large_output_is_counted_completely(self, shell: Shell) -> None:
        report = await shell.run("seq 1 150000; echo last")
        expected = "".join(f"{n}\n" for n in range(1, 150001)) + "last\n"
        assert (report.stdout.total_bytes, report.stdout.data) == (len(expected), expected.encode()[: 1 << 20])

    async def test_command_of_200_kb_runs(self, shell: Shell) -> None:
        assert await shell.says(f"echo {'x' * 200_000} | wc -c") == "200001\n"

    async def test_command_of_two_megabytes_runs(self, shell: Shell) -> None:
        text = "a line of text\n" * 133_334
        assert await shell.says(f"wc -c <<'END'\n{text}END\n") == f"{len(text)}\n"

    async def test_output_flood_is_limit_exceeded_and_the_session_survives(self, shell: Shell) -> None:
        await shell.run("x=1")
        report = await shell.run("yes", output_kill_bytes=1 << 20)
        assert (report.outcome, report.reason, report.message) == ("limit_exceeded", "output", None)
        assert await shell.says("echo $x") == "1\n"

    @pytest.mark.parametrize(
        "before",
        [
            "TMOUT=1",
            "IFS=1",
            "printf() { echo mine; }; read() { return 1; }; eval() { false; }; unset() { false; }",
            "alias printf=false eval=false unset=false builtin=false",
            "set -u",
        ],
    )
    async def test_shell_settings_of_one_command_do_not_break_the_next(self, shell: Shell, before: str) -> None:
        await shell.run(before)
        if before == "TMOUT=1":
            await shell.bench.run(a_command("sleep", "1.3", environment=shell.environment))
        for _ in range(2):
            report = await shell.run("echo hello; (exit 1)")
            assert (report.outcome, report.exit_code, report.stdout.data) == ("user_error", 1, b"hello\n"), report
            assert report.message is None

    async def test_traced_output_shows_only_the_command(self, shell: Shell) -> None:
        await shell.run("set -x")
        for _ in range(2):
            shown = await shell.says("echo hello")
            assert [line.lstrip("+ ") for line in shown.splitlines()] == [
                "builtin eval 'echo hello'",
                "echo hello",
                "hello",
            ]
        assert "hello" not in await shell.says("set +x; true")
        assert await shell.says("echo hello; echo error >&2") == "hello\nerror\n"

    async def test_command_reads_input_files_and_returns_fetched_files(self, shell: Shell) -> None:
        report = await shell.run("tr a-z A-Z < in > out", files={"in": b"abc"}, fetch=("out",))
        assert report.files == {"out": b"ABC"}

    async def test_command_reads_fed_stdin(self, shell: Shell) -> None:
        spec = shell.spec("echo ready; read x; echo got $x; cat", stdin_open=True)
        report = await shell.bench.begin(spec)
        output = await shell.bench.executor.poll_output(spec.fence, stdout=0, stderr=0)
        assert output is not None
        assert output.stdout.data == b"ready\n"
        for data, end in ((b"one\n", False), (b"rest", True)):
            assert (await shell.bench.executor.feed_stdin(spec.fence, data, offset=None, end=end)).status == "taken"
        assert (await report).stdout.data == b"ready\ngot one\nrest"
        assert await shell.says("echo after") == "after\n"

    async def test_unread_stdin_of_a_command_is_discarded(self, shell: Shell) -> None:
        await shell.run("true", stdin=b"unread\n")
        report = await shell.run("read x; echo [$x]", stdin=b"mine\n")
        assert report.stdout.data == b"[mine]\n"

    async def test_raw_terminal_mode_is_reset_for_the_next_command(self, shell: Shell) -> None:
        before = await shell.says("stty -a")
        await shell.run("stty raw echo")
        assert await shell.says("stty -a") == before


class TestTerminal:
    @pytest.mark.parametrize(
        "command", ["cat; cat", "read x || read x || echo end", "sh -c 'cat; cat'", "python3 -c 'input()' || true"]
    )
    async def test_command_without_stdin_reads_end_of_file(self, shell: Shell, command: str) -> None:
        report = await shell.run(command, timeout_s=5)
        assert report.outcome == "ok", report
        assert await shell.says("test -t 0 && echo terminal") == "terminal\n"

    @pytest.mark.parametrize(
        "given",
        [
            b"one\ntwo\n",
            b"one\ntwo",
            b"line\n" * 20_000,
            b"k" * 10_000 + b"\n",
            b"k" * 100_000,
            bytes(range(256)) * 40,
            b"\x04\x03\x1a\r\n\x7f\x15\x11\x13\x00\xff",
            b"a\x04",
        ],
        ids=["lines", "no_end", "many_lines", "long_line", "long_no_end", "all_bytes", "control_characters", "ctrl_d"],
    )
    async def test_given_stdin_arrives_whole_and_ends_with_end_of_file(self, shell: Shell, given: bytes) -> None:
        report = await shell.run("cat > got; wc -c < got", stdin=given, fetch=("got",), timeout_s=20)
        assert (report.outcome, report.stdout.data) == ("ok", b"%d\n" % len(given))
        assert report.files == {"got": given}

    async def test_second_reader_of_given_stdin_sees_its_end(self, shell: Shell) -> None:
        report = await shell.run("head -c 3; cat; cat; read x || echo end", stdin=b"one" + b"x" * 5000, timeout_s=10)
        assert (report.outcome, report.stdout.data[-4:]) == ("ok", b"end\n")

    @pytest.mark.parametrize(
        "command",
        [
            "read -n 1 x",
            "read -p 'sure? ' x",
            "python3 -q",
            "bash --norc -i",
            "stty sane; cat",
            "python3 -c 'import os, tty; tty.setraw(0); [os.read(0, 1) for _ in range(9)]'",
            "trap '' HUP INT; stty raw min 1; cat",
            "python3 -c 'import select, tty; tty.setraw(0); e = select.epoll(); e.register(0); e.poll()'",
            "yes | python3 -c 'import os, tty; t = os.open(\"/dev/tty\", os.O_RDWR); tty.setraw(t); os.read(t, 1)'",
        ],
    )
    async def test_interactive_program_without_stdin_ends_and_the_session_survives(
        self, shell: Shell, command: str
    ) -> None:
        await shell.run("kept=1")
        report = await shell.run(command, timeout_s=20)
        assert report.outcome in ("ok", "user_error"), report
        assert await shell.says("echo $kept; stty size") == "1\n50 200\n"

    async def test_program_that_waits_for_its_child_at_a_changed_terminal_is_not_ended(self, shell: Shell) -> None:
        program = "import subprocess; subprocess.run(['sleep', '3'], capture_output=True); print('done')"
        report = await shell.run(f'stty sane; python3 -c "{program}"', timeout_s=25)
        assert (report.outcome, report.stdout.data) == ("ok", b"done\r\n"), report

    async def test_pagers_and_editors_do_not_wait(self, shell: Shell) -> None:
        expected = "cat cat true true noninteractive\n"
        shown = "echo $PAGER $GIT_PAGER $EDITOR $GIT_EDITOR $DEBIAN_FRONTEND"
        assert await shell.says(shown) == expected
        assert await shell.says("export PAGER=less; echo $PAGER") == "less\n"

    async def test_nonblocking_terminal_is_reset_for_the_next_command(self, shell: Shell) -> None:
        await shell.run("python3 -c 'import os; os.set_blocking(0, False)'")
        spec = shell.spec("echo ready; cat", stdin_open=True)
        report = await shell.bench.begin(spec)
        await shell.bench.executor.poll_output(spec.fence, stdout=0, stderr=0)
        await asyncio.sleep(0.1)
        await shell.bench.executor.feed_stdin(spec.fence, b"late\n", offset=None, end=True)
        assert (await report).stdout.data == b"ready\nlate\n"

    async def test_stopped_terminal_output_resumes_for_the_next_command(self, shell: Shell) -> None:
        await shell.run("x=1; python3 -c 'import termios; termios.tcflow(0, termios.TCOOFF)'", timeout_s=1)
        assert await shell.says("echo $x") == "1\n"

    async def test_changed_terminal_line_discipline_restarts_only_the_session(self, shell: Shell) -> None:
        first = await shell.run("python3 -c 'import fcntl, struct; fcntl.ioctl(0, 0x5423, struct.pack(\"i\", 27))'")
        report = await shell.run("echo hello")
        assert (report.outcome, report.stdout.data) == ("ok", b"hello\n")
        if first.outcome == "ok":
            assert report.message == "session 'main' began with this command"
        else:
            assert b"Operation not permitted" in first.stdout.data
        assert await shell.says("echo again") == "again\n"


class TestStopping:
    @pytest.mark.parametrize("command", ["sleep 60", "while :; do sleep 60; done", "while :; do :; done"])
    async def test_command_past_its_timeout_is_interrupted_and_the_session_survives(
        self, shell: Shell, command: str
    ) -> None:
        await shell.run("x=1")
        report = await shell.run(f"echo begun; {command}", timeout_s=0.3)
        assert (report.outcome, report.message) == ("user_timeout", None)
        assert report.stdout.data.startswith(b"begun\n")
        assert await shell.says("echo $x") == "1\n"

    async def test_command_that_ignores_sigint_is_killed_and_the_session_survives(self, shell: Shell) -> None:
        await shell.run("x=1; sleep 61 &")
        late = await shell.run("sh -c \"trap '' INT; sleep 60; sleep 60\"", timeout_s=0.3)
        assert (late.outcome, late.message) == ("user_timeout", None)
        assert "sleep 61" in await shell.says("echo $x; jobs")

    async def test_unresponsive_shell_is_killed_and_reported_in_the_result(self, shell: Shell) -> None:
        await shell.run("x=1")
        report = await shell.run("trap '' INT; while :; do :; done", timeout_s=0.3)
        assert report.outcome == "user_timeout"
        assert "ended with this command" in (report.message or "")
        again = await shell.run("echo [$x]")
        assert (again.stdout.data, again.message) == (b"[]\n", "session 'main' began with this command")

    async def test_cancelled_command_leaves_the_session_alive(self, shell: Shell) -> None:
        await shell.run("x=1")
        spec = shell.spec("sleep 60")
        report = await shell.bench.begin(spec)
        await shell.bench.executor.kill([spec.fence])
        assert (await report).outcome == "cancelled"
        assert await shell.says("echo $x") == "1\n"
